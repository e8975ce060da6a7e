"""Read trajectories from Parquet with some of their columns, a few hundred in memory at a time.

`warn_of_malformed` tells a stage's line that nearly all of its trajectories are malformed: the
policy was then trained for another grammar, format or prompt.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa

from pipeline.core.errors import Place
from pipeline.core.input_files import parquet_batches
from pipeline.core.methods import DEFAULT_METHOD
from pipeline.core.record_io import parse_record
from pipeline.core.records import Trajectory
from pipeline.core.text import one_line
from pipeline.pairs.shortage import NEARLY_ALL
from pipeline.run.context import StageContext

_REASONS = 3
FILE = "trajectories.parquet"
# Fields without a default, which a selection of columns may lack.
_BLANK: dict[str, Any] = {
    "trajectory_id": "",
    "question_id": "",
    "dataset": "",
    "question": "",
    "hop": "single",
    "answers": [],
    "evidence": [],
    "grammar": DEFAULT_METHOD,
    "output": "",
}


def iterate_trajectories(
    path: Path, columns: Sequence[str], every: int = 1
) -> Iterator[Trajectory]:
    """Trajectories with the named columns only; the other fields are empty.

    With ``every`` above 1 the first of so many trajectories is read, and the others are skipped.
    Raises InputError when the file is unreadable, lacks a column, or holds another kind of record.
    """
    start = 0
    with Place(path) as place:
        for batch in parquet_batches(path, columns):
            places = range(-start % every, batch.num_rows, every)
            chosen = batch if every == 1 else batch.take(pa.array(places, pa.int64()))
            for number, row in zip(places, chosen.to_pylist(), strict=True):
                place.line = start + number + 1
                yield parse_record(Trajectory, _BLANK | row)
            start += batch.num_rows


def warn_of_malformed(context: StageContext, file: Path) -> None:
    """Warn of a file of trajectories of which nearly all are malformed, with the main reasons.

    Trajectories that a failure of the retrieval ended are not counted.
    """
    reasons: Counter[str] = Counter()
    columns = ("format_ok", "format_error", "stop")
    for batch in parquet_batches(file, columns):
        for row in batch.select(columns).to_pylist():
            if row["stop"] != "retrieval_error":
                error = row["format_error"] or f"stopped by {row['stop']}"
                reason = one_line(error.partition(" at offset")[0], 80)
                reasons["" if row["format_ok"] else reason] += 1
    total = reasons.total()
    malformed = total - reasons.pop("", 0)
    if total and malformed >= NEARLY_ALL * total:
        main = ", ".join(f"{reason} {count:,}" for reason, count in reasons.most_common(_REASONS))
        share = f"{100 * malformed / total:.0f} %"
        context.warn(f"{total:,} trajectories, {malformed:,} malformed ({share}): {main}")
