"""The table of ``steep status``, and ``--watch``."""

import contextlib
import io
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from rich.console import Console

from pipeline.cli.run import view
from tasks.status import StageState
from tests.cli.malformed_inputs import steep
from tests.waiting import LIMIT

ROOT = Path(__file__).resolve().parents[2]
ROWS = [
    *(StageState(f"stage-{n}", "done", {"rows": n}, 1.0, "runs/x") for n in range(20)),
    StageState("sample-1", "running", {}, None, "runs/x", message="41 % (1,024 of 2,480 items)"),
    StageState("score-1", "failed", {}, None, "runs/x", message="the disk is full (log: s.log)"),
    StageState("pair-1", "failed", {}, None, "runs/x", message="the disk is full (log: s.log)"),
    StageState("train-1", "stale", {}, None, "runs/x", message="follows pair-1"),
]


def test_the_watched_table_shows_what_is_not_done_and_each_failure_once():
    console = Console(record=True, width=120, file=io.StringIO())
    console.print(view(ROWS))
    text = console.export_text()
    for expected in ("41 % (1,024 of 2,480 items)", "follows pair-1", "20 of 24 stages are done"):
        assert expected in text
    assert "stage-3 " not in text
    assert "score-1, pair-1 failed: the disk is full (log: s.log)" in text


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (("--watch", "--json"), "--watch cannot be used with --json; remove one of them"),
        (("--watch", "--why", "corpus"), "--watch cannot be used with --why; remove one of them"),
        (("--watch",), "--watch needs a terminal; "),
    ],
)
def test_watch_is_refused_where_it_cannot_be_shown(tmp_path, monkeypatch, arguments, sentence):
    monkeypatch.chdir(tmp_path)
    status, printed, complaint = steep(["status", *arguments])
    assert (status, printed, complaint.count("\n")) == (2, "", 1)
    assert complaint.startswith(f"error: {sentence}")


def test_watch_refreshes_until_ctrl_c(tmp_path):
    master, slave = os.openpty()
    watching = subprocess.Popen(
        [sys.executable, "-m", "pipeline.cli", "status", "--watch"],
        cwd=tmp_path, stdin=slave, stdout=slave, stderr=slave, start_new_session=True,
        env={**os.environ, "PYTHONPATH": str(ROOT), "TERM": "xterm", "COLUMNS": "140", "LINES": "50"},
    )  # fmt: skip
    os.close(slave)
    try:
        text = ""
        while text.count("missing") < 40:  # 24 rows, twice
            text += os.read(master, 1 << 16).decode(errors="replace")
        watching.send_signal(signal.SIGINT)
        with contextlib.suppress(OSError):  # the terminal is closed; a full one would block
            while block := os.read(master, 1 << 16):
                text += block.decode(errors="replace")
        assert watching.wait(LIMIT) == 0
    finally:
        watching.kill()
        watching.wait()
        os.close(master)
    assert "Traceback" not in text
