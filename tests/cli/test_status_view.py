"""The table of ``steep status`` and the notes below it."""

import io

from rich.console import Console

from pipeline.cli.run import notes_of, table_of
from pipeline.engine.status import StageState

ROWS = [
    StageState("sample-1", "running", {}, None, "runs/x", message="41 % (1,024 of 2,480 items)"),
    StageState("score-1", "failed", {}, None, "runs/x", message="the disk is full (log: s.log)"),
    StageState("pair-1", "failed", {}, None, "runs/x", message="the disk is full (log: s.log)"),
    StageState("train-1", "stale", {}, None, "runs/x", message="follows pair-1"),
]


def test_the_table_has_progress_and_reasons_and_each_failure_is_told_once_below_it():
    console = Console(record=True, width=120, file=io.StringIO())
    console.print(table_of(ROWS))
    text = console.export_text()
    assert "41 % (1,024 of 2,480 items)" in text
    assert "follows pair-1" in text
    assert "the disk is full" not in text
    assert notes_of(ROWS) == ["score-1, pair-1 failed: the disk is full (log: s.log)"]
