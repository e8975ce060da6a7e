"""``steep status`` of stages that run, failed or were stopped, with real processes."""

import json
import os
import time
from contextlib import contextmanager, suppress
from typing import ClassVar

import pytest

from pipeline.engine.progress import read_progress
from pipeline.engine.removal import clean
from pipeline.engine.run import RunFailed, run
from pipeline.engine.status import status, why
from tests.tasks.counting_tasks import (
    Complains,
    First,
    FollowsBothComplaints,
    Second,
    Waits,
    background,
    new_process,
    task,
)
from tests.waiting import LIMIT, exit_status, wait_until


@contextmanager
def live(workspace):
    """Another process that runs the stage `Waits`, which has counted 4 of 10 items."""
    stage = task(Waits, workspace)
    with background(Waits, workspace) as process:
        wait_until(lambda: (record := progress_of(stage)) is not None and "loss" in record.values)
        yield process


def progress_of(stage):
    return read_progress(stage.store.progress_file(stage.key))


def names(stage) -> set[str]:
    """The files and directories of a stage, without its lock and its output."""
    folder, fingerprint = stage.store.root / stage.stage, stage.key.fingerprint
    return {path.name for path in folder.iterdir()} - {f"{fingerprint}.lock", fingerprint}


def test_a_running_stage_is_shown_with_its_percentage(workspace):
    stage = task(Waits, workspace)
    with live(workspace) as process:
        (row,) = status(stage)
        assert row.state == "running"
        assert json.loads(json.dumps(row.progress))["percent"] == 40.0
        assert row.message.startswith("40 % (4 of 10 items, ")
        assert row.message.endswith("left, loss 0.5)")
        (workspace / "release").touch()
        assert exit_status(process) == 0
    (row,) = status(stage)
    assert (row.state, row.progress, row.message) == ("done", None, None)
    assert names(stage) == set()


def test_looking_at_a_run_does_not_disturb_it(workspace):
    """The test of the lock, again and again while a process takes it."""
    stage = task(Waits, workspace)
    (workspace / "release").touch()
    with background(Waits, workspace) as process:
        while process.poll() is None:
            stage.store.in_use(stage.key)
            time.sleep(0.001)
        assert exit_status(process) == 0
    assert stage.complete()


def test_a_killed_stage_says_what_is_kept_until_that_is_removed(workspace):
    stage = task(Waits, workspace)
    with live(workspace) as process:
        process.kill()
    with stage.store.locked(stage.stage, stage.key.fingerprint, timeout=LIMIT):
        pass  # the stage's process has ended
    (row,) = status(stage)
    assert (row.state, row.progress["percent"], row.progress["rate"]) == ("missing", 40.0, None)
    assert row.message == (
        "stopped at 40 % (4 of 10 items, loss 0.5); it continues from its checkpoints"
    )
    assert stage.store.progress_file(stage.key) in clean(stage).removed
    assert names(stage) == set()
    assert status(stage)[0].message is None


def test_failed_stages_are_shown_with_their_sentence_and_told_once(workspace):
    last = task(FollowsBothComplaints, workspace)
    with pytest.raises(RunFailed) as caught:
        run(last, workers=2)
    assert str(caught.value).count("answer is missing") == 1
    assert str(caught.value).startswith("complains, complains-too: questions.jsonl:7: ")
    assert "complains-too.log" in str(caught.value)
    failed, *_, follows = status(last)
    assert (failed.state, follows.state) == ("failed", "missing")
    assert failed.message.startswith("questions.jsonl:7: answer is missing; add it (log: ")
    complains = task(Complains, workspace)
    file = complains.store.failure_file(complains.key)
    failure = json.loads(file.read_text())
    assert (failure["exit_status"], failure["time"][-1]) == (2, "Z")
    assert failure["log"].endswith("complains.log")
    clean(last)
    assert not file.exists()


class SecondToo(Second):
    stage = "second-too"
    entry = "counting_stages:second"


class Diamond(Second):
    """Needs three stages, two of which follow the third."""

    stage = "diamond"
    entry = "counting_stages:first"
    follows: ClassVar = {"a": First, "b": Second, "c": SecondToo}


def test_a_stale_stage_names_its_own_change_or_what_it_follows(workspace):
    run(task(Diamond, workspace))
    changed = task(Diamond, workspace, "retrieval.top_k=6")
    first, *_, diamond = status(changed)
    assert first.message == "setting retrieval.top_k: 5 -> 6"
    assert diamond.message == "follows first, second and 1 more"
    assert why(changed) == [
        "diamond: follows first, second and 1 more",
        "first: setting retrieval.top_k: 5 -> 6",
        "second: follows first",
        "second-too: follows first",
    ]


def test_bars_are_drawn_in_a_terminal_which_is_left_clean(workspace):
    leader, follower = os.openpty()
    environment = {k: v for k, v in os.environ.items() if k not in ("CI", "NO_COLOR")}
    environment |= {"TERM": "xterm", "COLUMNS": "140", "LINES": "40"}
    terminal = dict.fromkeys(("stdin", "stdout", "stderr"), follower)
    text = ""
    with new_process(
        Waits, workspace, popen={"env": environment, "start_new_session": True, **terminal}
    ):
        os.close(follower)
        with suppress(OSError):  # the process has closed the terminal
            while block := os.read(leader, 1 << 16):
                text += block.decode(errors="replace")
                if "4 of 10 items" in text:
                    (workspace / "release").touch()
    os.close(leader)
    assert " done in " in text
    shown, hidden = "\x1b[?25h", "\x1b[?25l"  # the cursor
    assert text.rfind(shown) > text.rfind(hidden) > 0
