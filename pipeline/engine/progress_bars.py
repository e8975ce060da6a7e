"""Show the progress of the running stages: in a terminal as bars, else as a line a minute.

Input: the tasks of a run, whose stages write progress files (`pipeline.engine.progress`).
Only the process that runs Luigi draws, and the lines that it prints appear above the bars. The last
row, or a line for every five percent, is about the whole run (`pipeline.engine.plan.time_left`).
"""

from __future__ import annotations

import os
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING

from pipeline.engine.job import aligned, say
from pipeline.engine.plan.time_left import RunTime
from pipeline.engine.progress import ProgressRecord, duration, read_progress
from pipeline.engine.stage import StageTask

if TYPE_CHECKING:
    from rich.table import Table

_BAR = 24  # characters
_LINE_SECONDS = 60.0  # between two lines of a stage outside a terminal
_POLL = 1.0  # seconds
_POINTS = 5  # percentage points between two lines on the whole run
_PLAIN = ("CI", "NO_COLOR")  # environment variables that ask for plain lines

Rows = Sequence[tuple[str, ProgressRecord]]
Running = Callable[[], Rows]
Share = tuple[int, str] | None  # percent of the run that are done, and the time left
Whole = Callable[[Rows], Share]


class RunningStages:
    """The tasks that run at present, with their records.

    A record counts when it was written after this object was made and its process lives. Its times
    do not tell: the clock of another machine may be behind.
    """

    def __init__(self, tasks: Sequence[StageTask]) -> None:
        files = [(task.label, task.store.progress_file(task.key)) for task in tasks]
        self._files = [(label, path, read_progress(path)) for label, path in files]

    def __call__(self) -> list[tuple[str, ProgressRecord]]:
        records = ((label, before, read_progress(path)) for label, path, before in self._files)
        return [
            (label, record)
            for label, before, record in records
            if record not in (None, before) and record.alive
        ]


@contextmanager
def shown(tasks: Sequence[StageTask]) -> Iterator[None]:
    """Show the progress of ``tasks``, complete and not, while the block runs them."""
    running, time_of_run = RunningStages(tasks), RunTime(tasks)

    def whole(rows: Rows) -> Share:
        return time_of_run({label: record.seconds for label, record in rows})

    with bars(running, whole) if _in_terminal() else quiet_lines(running, whole):
        yield


@contextmanager
def quiet_lines(running: Running, whole: Whole, seconds: float = _LINE_SECONDS) -> Iterator[None]:
    """Print one line for each stage every ``seconds``, and for the run, from a thread."""
    ended = threading.Event()
    arguments = (running, whole, seconds, ended)
    printer = threading.Thread(target=_print_lines, args=arguments, daemon=True)
    printer.start()
    try:
        yield
    finally:
        ended.set()
        printer.join()


def _print_lines(running: Running, whole: Whole, seconds: float, ended: threading.Event) -> None:
    due: dict[str, float] = {}
    told = 0
    while not ended.wait(min(_POLL, seconds)):
        now, rows, lines = time.monotonic(), running(), list[tuple[str, str]]()
        for label, record in rows:
            if now >= due.setdefault(label, now + seconds):
                due[label] = now + seconds
                lines.append((label, record.sentence()))
        if (share := whole(rows)) and share[0] >= told + _POINTS:
            told = share[0]
            lines.append(("run", f"{told} % of the run done, {share[1]}"))
        for line in lines:
            say(aligned(*line))


@contextmanager
def bars(running: Running, whole: Whole) -> Iterator[None]:
    """Draw a bar for each stage, and one for the run, below the lines that this process prints."""
    from rich.console import Console
    from rich.live import Live

    def drawn() -> Table:
        rows = running()
        return table_of(rows, whole(rows))

    console = Console(soft_wrap=True)
    live = Live(
        get_renderable=drawn,
        console=console,
        refresh_per_second=2,
        transient=True,
    )
    with live:
        console.show_cursor(True)  # so that a kill leaves the terminal as it was
        yield


def table_of(running: Rows, whole: Share = None) -> Table:
    """One row for each stage: label, bar, share, count, rate, remaining time and values.

    The last row is about the run, if that is known.
    """
    from rich.progress_bar import ProgressBar
    from rich.table import Table
    from rich.text import Text

    table = Table.grid(padding=(0, 1))
    for _ in range(4):
        table.add_column(no_wrap=True)
    table.add_column(no_wrap=True, overflow="ellipsis")
    for label, record in running:
        bar = ProgressBar(record.total, record.done, width=_BAR, pulse=not record.total)
        elapsed = duration(record.seconds + max(0.0, time.time() - record.updated))
        details = ", ".join(record.details()) or f"{elapsed} so far"
        cells = (record.share, record.count or "starting", details)
        table.add_row(Text(label, "bold"), bar, *map(Text, cells))
    if whole is not None:
        done, left = whole
        bar = ProgressBar(100, done, width=_BAR)
        table.add_row(Text("run", "bold"), bar, f"{done} %", "of the run done", left)
    return table


def _in_terminal() -> bool:
    """Whether bars can be drawn, and no environment variable asks for plain lines."""
    try:
        terminal = sys.stdout.fileno() == 1 and os.isatty(1)
    except (OSError, ValueError):
        return False
    plain = os.environ.get("TERM", "dumb") == "dumb" or any(map(os.environ.get, _PLAIN))
    return terminal and not plain
