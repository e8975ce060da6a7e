"""The table of ``steep status``, once or refreshed about each second (``--watch``)."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from pipeline.core.errors import InputError

if TYPE_CHECKING:
    from rich.console import Console, RenderableType
    from rich.table import Table

    from tasks.status import StageState

_COLORS = {
    "done": "green", "reused": "green", "running": "cyan", "missing": "dim", "stale": "yellow", "failed": "red",
    "damaged": "red",
}  # fmt: skip
_WIDTH = 160  # of the table outside a terminal
_AROUND = 5  # lines of a terminal beside the rows: borders, the heading and the prompt


def print_status(rows: Sequence[StageState]) -> None:
    """Print the table, then one line for each failure and each damaged file."""
    from rich.console import Console

    Console(width=None if sys.stdout.isatty() else _WIDTH).print(table_of(rows))
    for line in notes_of(rows):
        print(line)


def watch(read: Callable[[], Sequence[StageState]], seconds: float = 1.0) -> None:
    """Show what ``read`` returns, again after ``seconds``, until Ctrl-C.

    Raises InputError outside a terminal.
    """
    from rich.console import Console
    from rich.live import Live

    if not sys.stdout.isatty():
        raise InputError(
            "--watch needs a terminal; leave it out (`steep status`), or call `steep status --json` again "
            "and again"
        )
    console = Console()
    with Live(console=console, auto_refresh=False) as live:
        console.show_cursor(True)  # so that a kill leaves the terminal as it was
        try:
            while True:
                live.update(view(read(), console), refresh=True)
                time.sleep(seconds)
        except KeyboardInterrupt:
            return


def view(rows: Sequence[StageState], console: Console) -> RenderableType:
    """Table and notes; stages that are done are left out from the top where the terminal is too low."""
    from rich.console import Group
    from rich.text import Text

    notes = notes_of(rows)
    room = max(1, console.height - _AROUND - len(notes))
    kept = list(rows)
    while len(kept) > room and kept[0].state in ("done", "reused"):
        del kept[0]
    if hidden := len(rows) - len(kept):
        notes = [f"{hidden} stages above these are done", *notes]
    return Group(table_of(kept), *map(Text, notes))


def table_of(rows: Sequence[StageState]) -> Table:
    """One row for each stage: state, seconds, rows or what is known of its progress, directory."""
    from rich.table import Table
    from rich.text import Text  # text with brackets is no markup

    table = Table("stage", "state", "seconds", "rows", "directory")
    for row in rows:
        counts = ", ".join(f"{value:,} {name}" for name, value in row.counts.items())
        message = "" if row.state == "failed" else row.message or ""  # it is told below the table
        seconds = "" if row.wall_seconds is None else f"{row.wall_seconds:.0f}"
        state = "damaged" if row.damage else row.state
        directory = os.path.relpath(row.directory)
        table.add_row(
            Text(row.label),
            Text(state, _COLORS.get(state, "")),
            seconds,
            Text(counts or message),
            Text(directory),
        )
    return table


def notes_of(rows: Sequence[StageState]) -> list[str]:
    """One line for each failure, each damaged file and each command that makes an output again.

    Stages that failed for the same reason share a line.
    """
    notes = []
    failed: dict[str, list[str]] = {}
    for row in rows:
        if row.state == "failed" and row.message:
            failed.setdefault(row.message, []).append(row.label)
    for message, labels in failed.items():
        notes.append(f"{', '.join(labels)} failed: {message}")
    for row in rows:
        notes += [f"{row.label} is damaged: {line}" for line in row.damage]
        if row.remake:
            notes.append(f"{row.label}: make it again: {row.remake}")
    return notes
