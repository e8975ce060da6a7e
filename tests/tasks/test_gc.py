"""Outputs that no configuration names: which are listed, and that nothing else is ever removed."""

import os
import signal
import subprocess
import sys

import pytest

from pipeline.run.removal import clean
from tasks.gc import collect
from tasks.run import run
from tasks.status import status
from tests.tasks.counting_tasks import (
    First,
    FollowsTens,
    Second,
    Waits,
    executions,
    task,
)
from tests.waiting import LIMIT, wait_until


@pytest.fixture(autouse=True)
def _in_workspace(workspace, monkeypatch):
    monkeypatch.chdir(workspace)  # the shared store data/closed_world is below it


def gc(*tasks, removing=False, recent_minutes=0.0):
    return collect(tasks, removing=removing, recent_minutes=recent_minutes)


def states(stage) -> list[str]:
    return [state.state for state in status(stage)]


def contents(folder) -> set[str]:
    paths = (path for path in folder.rglob("*") if path.parent.name != "store")
    return {str(path) for path in paths if path.suffix != ".lock"}


def test_only_the_output_of_other_settings_is_listed_with_size_age_and_reason(workspace):
    named = run(task(Second, workspace))
    other = run(task(Second, workspace, "retrieval.tau=0.3"))
    before = contents(workspace / "runs")
    found = gc(task(Second, workspace))
    assert found.left == []
    assert [row.directory for row in found.rows] == [str(other)]
    row = found.rows[0]
    assert (row.stage, row.removed) == ("second", False)
    assert row.reason == "setting retrieval.tau: 0.3 -> 0.2"
    assert row.bytes == sum(path.stat().st_size for path in other.iterdir())
    assert 0 <= row.age_seconds < 600
    assert contents(workspace / "runs") == before
    assert named.exists()


def test_an_output_made_from_an_unnamed_input_says_so(workspace):
    run(task(Second, workspace))
    run(task(Second, workspace, "retrieval.top_k=6"))
    reasons = {row.stage: row.reason for row in gc(task(Second, workspace)).rows}
    assert reasons == {
        "first": "setting retrieval.top_k: 6 -> 5",
        "second": "made from another first",
    }


def test_what_status_shows_as_done_stays_done(workspace):
    run(task(Second, workspace))
    run(task(Second, workspace, "retrieval.top_k=6"))
    run(task(Second, workspace, "retrieval.tau=0.3"))
    before = executions(workspace)
    found = gc(task(Second, workspace), removing=True)
    assert [row.removed for row in found.rows] == [True] * 3
    assert states(task(Second, workspace)) == ["done", "done"]
    run(task(Second, workspace))
    assert executions(workspace) == before
    run(task(Second, workspace, "retrieval.tau=0.3"))  # its first stage is that of the named run
    assert executions(workspace)[len(before) :] == ["second", "batch 0", "batch 1", "batch 2"]


def test_what_any_of_several_configurations_names_is_kept(workspace):
    run(task(Second, workspace))
    run(task(Second, workspace, "retrieval.tau=0.3"))
    both = task(Second, workspace), task(Second, workspace, "retrieval.tau=0.3")
    assert gc(*both, removing=True).rows == []
    assert all(stage.complete() for stage in both)


def test_a_reused_output_is_kept(workspace):
    made = run(task(FollowsTens, workspace, "name=tens.txt", "retrieval.top_k=31"))
    reusing = task(FollowsTens, workspace, "name=tens.txt", "retrieval.top_k=32")
    assert run(reusing) == made
    assert [row.stage for row in gc(reusing, removing=True).rows] == ["rounded"]
    assert states(reusing) == ["done", "reused"]


def test_checkpoints_are_listed_unless_a_configuration_would_continue_from_them(workspace):
    stages = task(Second, workspace), task(Second, workspace, "retrieval.tau=0.3")
    for stage in stages:
        folder = stage.store.checkpoint_dir(stage.key)
        folder.mkdir(parents=True)
        (folder / "1.txt").write_text("batch")
    found = gc(stages[0], removing=True)
    assert [row.directory for row in found.rows] == [
        str(stages[1].store.checkpoint_dir(stages[1].key))
    ]
    assert "checkpoints" in found.rows[0].reason
    assert found.rows[0].bytes == 5
    assert [stage.store.checkpoint_dir(stage.key).exists() for stage in stages] == [True, False]


def test_nothing_is_removed_soon_after_other_settings_wrote(workspace):
    run(task(Second, workspace))
    other = run(task(Second, workspace, "retrieval.tau=0.3"))
    found = gc(task(Second, workspace), removing=True, recent_minutes=10)
    assert [row.removed for row in found.rows] == [False]
    assert other.exists()
    assert "was written" in found.left[0]
    an_hour_ago = (other / "manifest.json").stat().st_mtime - 3600
    os.utime(other / "manifest.json", (an_hour_ago, an_hour_ago))
    assert gc(task(Second, workspace), removing=True, recent_minutes=10).rows[0].removed
    assert not other.exists()


def test_nothing_is_removed_while_a_process_runs_other_settings(workspace):
    run(task(First, workspace, "retrieval.top_k=6"))  # an input that the process may be reading
    code = (
        "import sys; from pathlib import Path; from tests.tasks.counting_tasks import Waits, task; "
        "from tasks.run import run; run(task(Waits, Path(sys.argv[1]), 'seed=1'))"
    )
    process = subprocess.Popen([sys.executable, "-c", code, str(workspace)], cwd=workspace)
    try:
        wait_until(lambda: "waits" in executions(workspace))
        roots = task(First, workspace), task(Waits, workspace)
        found = gc(*roots, removing=True)
        assert [row.removed for row in found.rows] == [False, False]  # with its checkpoints
        assert "a process runs stage waits" in found.left[0]
    finally:
        (workspace / "release").touch()
        assert process.wait(LIMIT) == 0
    assert [row.removed for row in gc(*roots, removing=True).rows] == [True, True]


def test_a_process_that_runs_named_settings_does_not_hinder(workspace):
    base = task(Waits, workspace)
    other = run(task(First, workspace, "retrieval.top_k=6"))
    with base.store.locked("waits", base.key.fingerprint, 0):
        assert gc(base, task(First, workspace), removing=True).rows[0].removed
    assert not other.exists()


def test_what_steep_did_not_make_and_links_are_left(workspace):
    made = run(task(Second, workspace))
    outside = workspace / "outside"
    outside.mkdir()
    (outside / "manifest.json").write_bytes((made / "manifest.json").read_bytes())
    folder = made.parent
    (folder / "0123456789abcdef").symlink_to(outside)
    (folder / "fedcba9876543210.partial").symlink_to(outside)
    (folder / "thesis").mkdir()
    (folder.parent / "notes" / ("0" * 16)).mkdir(parents=True)
    (folder / ("1" * 16)).mkdir()
    (folder / ("1" * 16) / "manifest.json").write_bytes((made / "manifest.json").read_bytes())
    other = run(task(Second, workspace, "retrieval.tau=0.3"))
    (other / "link").symlink_to(outside)
    before = contents(workspace)
    found = gc(task(Second, workspace), removing=True)
    assert [row.directory for row in found.rows] == [str(other)]
    assert found.left == [f"{folder / ('1' * 16)} holds the manifest of another output"]
    gone = {str(other), *(str(other / name) for name in ("manifest.json", "total.txt", "link"))}
    assert before - contents(workspace) == gone


def test_a_kill_midway_leaves_litter_that_is_removed_later(workspace):
    run(task(Second, workspace))
    other = run(task(Second, workspace, "retrieval.tau=0.3"))
    code = (
        "import os, sys; from pathlib import Path; from tasks.gc import collect; "
        "from tests.tasks.counting_tasks import Second, task; root = task(Second, Path.cwd()); "
        "sys.addaudithook(lambda event, _: event == 'os.remove' and os.kill(os.getpid(), 9)); "
        "collect([root], removing=True, recent_minutes=0)"
    )
    killed = subprocess.run([sys.executable, "-c", code], cwd=workspace, check=False)
    assert killed.returncode == -signal.SIGKILL
    rest = [path for path in other.parent.iterdir() if "discarded" in path.name]
    assert len(rest) == 1
    assert (rest[0] / "total.txt").exists()
    assert not other.exists()
    assert states(task(Second, workspace)) == ["done", "done"]
    assert clean(task(Second, workspace).store, {"first", "second"}).removed == rest
    assert states(task(Second, workspace)) == ["done", "done"]
