"""A stage's line says that nearly all of its trajectories are malformed, and why.

The policy was then trained for another grammar, format or prompt.
"""

from __future__ import annotations

from collections import Counter
from pathlib import Path

from pipeline.core.row_files import parquet_batches
from pipeline.core.text import one_line
from pipeline.engine.context import StageContext
from pipeline.pairs.shortage import NEARLY_ALL

_REASONS = 3


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
