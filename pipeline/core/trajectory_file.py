"""Read trajectories from Parquet with some of their columns, a few hundred in memory at a time."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa

from pipeline.core.errors import Place
from pipeline.core.methods import DEFAULT_METHOD
from pipeline.core.record_io import parse_record
from pipeline.core.records import Trajectory
from pipeline.core.row_files import parquet_batches

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
