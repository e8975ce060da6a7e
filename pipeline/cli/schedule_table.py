"""The table and the lines of ``steep plan --schedule``: when stages run, and on which GPUs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from pipeline.cli.plan_tables import duration

if TYPE_CHECKING:
    from rich.table import Table

    from tasks.planning.simulation import Simulated

_ASSUMED = "assumed"


def schedule_table(simulated: Simulated) -> Table:
    """One row for each stage, in the order in which they start."""
    from rich.table import Table
    from rich.text import Text

    table = Table("stage")
    for heading in ("start", "end", "time"):
        table.add_column(heading, justify="right")
    if simulated.gpus:
        table.add_column("GPUs")
    table.add_column("threads", justify="right")
    table.add_column("time from")
    for one in simulated.placed:
        assumed = one.job.label in simulated.assumed
        cells = [one.job.label, *map(duration, (one.start, one.end, one.job.seconds))]
        cells += [_ranges(one.devices)] if simulated.gpus else []
        cells += [str(one.job.threads), _ASSUMED if assumed else "plan"]
        table.add_row(*map(Text, cells))
    return table


def schedule_lines(simulated: Simulated) -> list[str]:
    """The totals of a schedule, and what its times are worth."""
    if not simulated.placed:
        return ["every stage is done; nothing would run"]
    shared = f"{simulated.workers} stages at once, {simulated.threads} CPU threads"
    lines = [f"total: {duration(simulated.seconds)} with at most {shared}"]
    if simulated.gpus:
        hours = simulated.gpus * simulated.seconds * simulated.busy / 3600
        lines[0] += f"; {hours:,.1f} GPU hours"
        lines.append(
            f"GPUs: stages have the {simulated.gpus} GPUs for {simulated.busy:.0%} of the time"
        )
    if simulated.assumed:
        lines.append(
            f"{len(simulated.assumed)} of {len(simulated.placed)} times are assumed and not measured: see "
            "docs/plan.md, or run steep plan --probe where the run will be"
        )
    return lines


def _ranges(numbers: Sequence[int]) -> str:
    """Numbers with consecutive ones joined: ``0-3, 6``."""
    parts: list[list[int]] = []
    for number in numbers:
        if parts and number == parts[-1][-1] + 1:
            parts[-1].append(number)
        else:
            parts.append([number])
    return ", ".join(f"{part[0]}-{part[-1]}" if len(part) > 1 else str(part[0]) for part in parts)
