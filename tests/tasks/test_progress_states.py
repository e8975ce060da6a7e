"""``steep status`` of stages that run, failed or were stopped, with real processes."""

import json
import os
import signal
import subprocess
import sys
from contextlib import contextmanager

import pytest

from pipeline.run.progress import read_progress
from tasks.run import RunFailed, clean, run
from tasks.status import status, why
from tests.tasks.counting_tasks import (
    ROOT,
    BothReport,
    Complains,
    First,
    FollowsBothComplaints,
    FollowsComplaint,
    Reports,
    Second,
    task,
)
from tests.waiting import LIMIT, wait_until

PROCESS = """
import sys
from pathlib import Path
from tasks.run import run
from tests.tasks.counting_tasks import Reports, task
run(task(Reports, Path(sys.argv[1])))
"""


@contextmanager
def live(workspace):
    """Another process that runs the stage `Reports`, which has counted 4 of 10 items."""
    process = subprocess.Popen([sys.executable, "-c", PROCESS, str(workspace)], cwd=ROOT)
    stage = task(Reports, workspace)
    try:
        wait_until(lambda: (record := progress_of(stage)) is not None and "loss" in record.values)
        yield process
    finally:
        process.kill()
        process.wait()


def progress_of(stage):
    return read_progress(stage.store.progress_file(stage.key))


def names(stage) -> set[str]:
    """The files and directories of a stage, without its lock and its output."""
    folder, fingerprint = stage.store.root / stage.stage, stage.key.fingerprint
    return {path.name for path in folder.iterdir()} - {f"{fingerprint}.lock", fingerprint}


def test_a_running_stage_is_shown_with_its_percentage(workspace):
    stage = task(Reports, workspace)
    with live(workspace) as process:
        (row,) = status(stage)
        assert row.state == "running"
        assert row.progress["percent"] == 40.0
        assert row.progress["values"] == {"loss": 0.5}
        assert row.message.startswith("40 % (4 of 10 items, ")
        assert row.message.endswith("left, loss 0.5)")
        assert json.dumps(row.progress)
        (workspace / "release").touch()
        assert process.wait(LIMIT) == 0
    (row,) = status(stage)
    assert (row.state, row.progress, row.message) == ("done", None, None)
    assert names(stage) == set()


def test_looking_at_a_run_does_not_disturb_it(workspace):
    """The test of the lock, again and again while a process takes it."""
    stage = task(Reports, workspace)
    with subprocess.Popen([sys.executable, "-c", PROCESS, str(workspace)], cwd=ROOT) as process:
        (workspace / "release").touch()
        while process.poll() is None:
            stage.store.in_use(stage.key)
    assert process.returncode == 0
    assert stage.complete()


@pytest.mark.parametrize("restarted", [False, True])
def test_a_killed_stage_says_what_is_kept(workspace, restarted):
    stage = task(Reports, workspace)
    with live(workspace) as process:
        process.send_signal(signal.SIGKILL)
        process.wait()
        with stage.store.locked(stage.stage, stage.key.fingerprint, timeout=LIMIT):
            pass  # the stage's process has ended
    (row,) = status(stage)
    assert row.state == "missing"
    assert row.message == (
        "stopped at 40 % (4 of 10 items, loss 0.5); it continues from its checkpoints"
    )
    assert (row.progress["percent"], row.progress["rate"]) == (40.0, None)
    if restarted:
        (workspace / "release").touch()
        run(stage)
        assert names(stage) == set()
    else:
        removed = clean(stage).removed
        assert stage.store.progress_file(stage.key) in removed
        assert names(stage) == set()
        assert status(stage)[0].message is None


@pytest.mark.parametrize("workers", [1, 2])
def test_a_failed_stage_is_shown_with_its_sentence(workspace, workers):
    with pytest.raises(RunFailed):
        run(task(FollowsComplaint, workspace), workers=workers)
    failed, follows = status(task(FollowsComplaint, workspace))
    assert (failed.state, follows.state) == ("failed", "missing")
    assert failed.message.startswith("questions.jsonl:7: answer is missing; add it (log: ")
    failure = json.loads(
        (store := task(Complains, workspace).store)
        .failure_file(task(Complains, workspace).key)
        .read_text()
    )
    assert failure["exit_status"] == 2
    assert failure["log"].endswith("complains.log")
    assert failure["time"].endswith("Z")
    clean(task(FollowsComplaint, workspace))
    assert not store.failure_file(task(Complains, workspace).key).exists()


def test_a_stage_that_was_killed_alone_has_failed_until_it_is_done(workspace):
    (workspace / "kill").touch()
    second = task(Second, workspace)
    with pytest.raises(RunFailed):
        run(second)
    row = status(second)[1]
    assert row.state == "failed"
    assert "killed by SIGKILL" in row.message
    (workspace / "kill").unlink()
    run(second)
    assert [row.state for row in status(second)] == ["done", "done"]
    assert names(second) == set()


def test_a_refused_second_process_is_no_failure_of_the_stage(workspace):
    stage = task(Reports, workspace)
    with live(workspace):
        object.__setattr__(stage, "lock_seconds", 0.2)
        with pytest.raises(RunFailed, match="another process is running"):
            run(stage)
        assert not stage.store.failure_file(stage.key).exists()
        assert status(stage)[0].state == "running"


def test_a_failure_of_the_disk_is_told_although_it_cannot_be_recorded(workspace):
    stage = task(Complains, workspace)
    blocked = stage.store.failure_file(stage.key)
    blocked.parent.mkdir(parents=True)
    blocked.mkdir()  # nothing can be renamed to it
    with pytest.raises(RunFailed, match="answer is missing"):
        run(stage)
    assert blocked.is_dir()


def test_stages_that_fail_by_one_cause_are_told_once(workspace):
    with pytest.raises(RunFailed) as caught:
        run(task(FollowsBothComplaints, workspace), workers=2)
    assert str(caught.value).count("answer is missing") == 1
    assert str(caught.value).startswith("complains, complains-too: questions.jsonl:7: ")
    assert "complains.log" in str(caught.value)
    assert "complains-too.log" in str(caught.value)


def test_a_stale_stage_names_its_own_change_or_what_it_follows(workspace):
    run(task(Second, workspace))
    rows = status(task(Second, workspace, "retrieval.top_k=6"))
    assert [row.message for row in rows] == ["setting retrieval.top_k: 5 -> 6", "follows first"]


class FollowsThree(Second):
    stage = "follows-three"
    entry = "counting_stages:first"

    def upstream(self):
        return {
            name: self.clone(kind) for name, kind in (("a", First), ("b", Second), ("c", SecondToo))
        }


def test_a_stage_that_follows_many_names_two(workspace):
    run(task(FollowsThree, workspace))
    rows = status(task(FollowsThree, workspace, "retrieval.top_k=6"))
    assert rows[-1].message == "follows first, second and 1 more"


class SecondToo(Second):
    stage = "second-too"


class Diamond(Second):
    """Needs two stages that follow the same one."""

    stage = "diamond"
    entry = "counting_stages:first"

    def upstream(self):
        return {"one": self.clone(Second), "other": self.clone(SecondToo)}


def test_why_tells_one_cause_once(workspace):
    run(task(Diamond, workspace))
    assert why(task(Diamond, workspace, "retrieval.top_k=6")) == [
        "diamond: upstream stage second changed",
        "  first: setting retrieval.top_k: 5 -> 6",
        "diamond: upstream stage second-too changed, by a cause that is named above",
    ]


def test_every_stage_leaves_a_log_that_says_what_it_did(workspace):
    run(task(Second, workspace))
    log = (workspace / "runs" / "embedded" / "logs" / "second.log").read_text()
    assert f"stage second, fingerprint {task(Second, workspace).key.fingerprint}" in log
    assert f"reads first: {task(First, workspace).directory}" in log
    assert "wrote 3 rows in " in log


SHOWN = """
import sys
from pathlib import Path
from tasks.run import run
from tests.tasks.counting_tasks import BothReport, task
run(task(BothReport, Path(sys.argv[1])), workers=int(sys.argv[2]))
"""


class Terminal:
    """A process in a terminal of its own; ``text`` is what it has written."""

    def __init__(self, workspace, workers: int) -> None:
        master, slave = os.openpty()
        environment = {
            name: value for name, value in os.environ.items() if name not in ("CI", "NO_COLOR")
        }
        self.process = subprocess.Popen(
            [sys.executable, "-c", SHOWN, str(workspace), str(workers)],
            cwd=ROOT, stdin=slave, stdout=slave, stderr=slave, start_new_session=True,
            env={**environment, "TERM": "xterm", "COLUMNS": "140", "LINES": "40"},
        )  # fmt: skip
        os.close(slave)
        self._master = master
        self.text = ""
        os.set_blocking(master, False)

    def read(self) -> str:
        try:
            while block := os.read(self._master, 1 << 16):
                self.text += block.decode()
        except BlockingIOError:
            pass
        except OSError:  # the process has closed the terminal
            pass
        return self.text

    def end(self) -> int:
        wait_until(lambda: (self.read(), self.process.poll() is not None)[1])
        self.read()
        return self.process.returncode

    def close(self) -> None:
        self.process.kill()
        self.process.wait()
        os.close(self._master)


@pytest.mark.parametrize("workers", [1, 2])
def test_bars_are_drawn_in_a_terminal_and_lines_stay_whole(workspace, workers):
    terminal = Terminal(workspace, workers)
    try:
        wait_until(lambda: terminal.read().count("4 of 10 items") > 1)
        if workers == 2:
            wait_until(lambda: "reports-too" in terminal.read().split("4 of 10 items")[-2])
        (workspace / "release").touch()
        assert terminal.end() == 0
    finally:
        terminal.close()
    lines = [line.strip() for line in terminal.text.replace("\r", "\n").split("\n")]
    ended = [line for line in lines if " done in " in line]
    assert len(ended) == 3
    assert all(line.endswith(("10 rows", "1 rows")) for line in ended)
    assert terminal.text.rfind("\x1b[?25h") > terminal.text.rfind("\x1b[?25l")  # the cursor


def test_an_interrupted_run_leaves_the_terminal_clean(workspace):
    terminal = Terminal(workspace, 1)
    try:
        wait_until(lambda: "4 of 10 items" in terminal.read())
        os.killpg(terminal.process.pid, signal.SIGINT)
        assert terminal.end() != 0
    finally:
        terminal.close()
    assert terminal.text.rfind("\x1b[?25h") > terminal.text.rfind("\x1b[?25l")
    assert status(task(BothReport, workspace))[0].state == "missing"
