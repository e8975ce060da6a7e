"""Forced runs, cleaning and logs while another process runs the same stage."""

import subprocess
import sys
from contextlib import contextmanager

import pytest

from tasks.run import RunFailed, clean, run
from tests.tasks.counting_tasks import (
    ROOT,
    First,
    Reports,
    Second,
    Waits,
    executions,
    task,
)
from tests.waiting import LIMIT, wait_until

PROCESS = """
import sys
from pathlib import Path
from tasks.run import run
from tests.tasks.counting_tasks import Waits, task
run(task(Waits, Path(sys.argv[1]), *sys.argv[2:]))
"""


FORCED = """
import sys, time
from pathlib import Path
from pipeline.cli.app import main
from tasks.run import run
from tests.tasks.counting_tasks import Reports, task
stage, start = task(Reports, Path(sys.argv[1])), Path(sys.argv[1]) / "start"
print("ready", flush=True)
while not start.exists():
    time.sleep(0.01)
main(lambda: run(stage, force=True))
"""


@contextmanager
def live(workspace, *overrides):
    """Another process that runs the stage `Waits`; it ends with the block, and must succeed."""
    process = subprocess.Popen(
        [sys.executable, "-c", PROCESS, str(workspace), *overrides], cwd=ROOT
    )
    try:
        stage = task(Waits, workspace, *overrides)
        wait_until(lambda: (stage.store.checkpoint_dir(stage.key) / "checkpoint.txt").exists())
        yield
        (workspace / "release").touch()
        assert process.wait(LIMIT) == 0
    finally:
        process.kill()
        process.wait()


def test_force_beside_a_live_run_is_refused_and_leaves_its_checkpoints(workspace):
    stage = task(Waits, workspace)
    with live(workspace):
        with pytest.raises(
            RunFailed, match="waits: another process is running this stage"
        ) as caught:
            run(stage, force=True)
        assert caught.value.exit_status == 2
        assert (stage.store.checkpoint_dir(stage.key) / "checkpoint.txt").read_text() == "kept"
    assert (stage.directory / "text.txt").read_text() == "kept"
    assert executions(workspace) == ["waits"]


def test_of_three_forced_runs_at_once_none_finds_its_stage_incomplete(workspace):
    (workspace / "release").touch()
    run(task(Reports, workspace))
    command = [sys.executable, "-c", FORCED, str(workspace)]
    piped = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    processes = [subprocess.Popen(command, cwd=ROOT, **piped) for _ in range(3)]
    for process in processes:
        assert process.stdout.readline() == "ready\n"
    (workspace / "start").touch()
    ended = {process.communicate()[1]: process.returncode for process in processes}
    assert set(ended.values()) == {0, 2}, ended
    refused = [text for text, status in ended.items() if status == 2]
    assert all("another process is running this stage" in text for text in refused), ended
    assert task(Reports, workspace).complete()


def test_a_refused_force_leaves_the_output_complete(workspace):
    stage = task(Waits, workspace)
    (workspace / "release").touch()
    run(stage)
    with (
        stage.store.locked(stage.stage, stage.key.fingerprint, timeout=0),
        pytest.raises(RunFailed),
    ):
        run(stage, force=True)
    assert stage.complete()
    assert executions(workspace) == ["waits"]


def test_a_second_process_does_not_truncate_the_log_of_the_first(workspace):
    log = workspace / "runs" / "embedded" / "logs" / "waits.log"
    with live(workspace):
        wait_until(lambda: "working" in log.read_text())
        before = log.read_text()
        with pytest.raises(RunFailed, match="another process"):
            run(task(Waits, workspace))
        assert log.read_text() == before


def test_a_live_stage_with_other_settings_has_another_log(workspace):
    folder = workspace / "runs" / "embedded" / "logs"
    with live(workspace):
        other = task(Waits, workspace, "seed=1")
        with live(workspace, "seed=1"):
            pass
        assert "working" in (folder / f"waits-{other.key.fingerprint}.log").read_text()
        assert (folder / "waits.log").read_text().count("working") == 1


def test_the_log_of_the_attempt_before_is_kept(workspace):
    (workspace / "kill").touch()
    with pytest.raises(RunFailed):
        run(task(Second, workspace))
    log = workspace / "runs" / "embedded" / "logs" / "second.log"
    first = log.read_text()
    (workspace / "kill").unlink()
    run(task(Second, workspace))
    assert log.with_name("second.log.1").read_text() == first
    assert log.read_text() != first
    run(task(Second, workspace), force=True)
    assert sorted(path.name for path in log.parent.glob("second*")) == [
        "second.log",
        "second.log.1",
    ]


def test_a_killed_forced_run_continues_without_force(workspace):
    run(task(Second, workspace))
    (workspace / "kill").touch()
    with pytest.raises(RunFailed):
        run(task(Second, workspace), force=True)
    assert not task(Second, workspace).complete()
    (workspace / "kill").unlink()
    run(task(Second, workspace))
    assert executions(workspace).count("batch 0") == 2  # once in each of the two outputs
    assert executions(workspace).count("batch 1") == 2


def test_force_leaves_the_files_to_a_process_that_reads_them(workspace):
    directory = run(task(Second, workspace))
    (workspace / "kill").touch()
    with pytest.raises(RunFailed):
        run(task(Second, workspace), force=True)
    assert (directory / "total.txt").read_text() == "15"


def test_clean_leaves_a_live_stage_and_everything_that_the_store_did_not_make(workspace):
    stage = task(Waits, workspace)
    root = stage.store.root
    litter = [
        root / "first" / name
        for name in ("0123456789abcdef", "0123456789abcdef.partial", ".0123456789abcdef.x1",
                     "0123456789abcdef.discarded-12")
    ]  # fmt: skip
    kept = [
        root / "first" / "thesis",
        root / "first" / "0123456789abcdef0",
        root / "stranger" / "0123456789abcdef",
        root / "first" / "fedcba9876543210",
    ]
    for folder in [*litter, *kept]:
        folder.mkdir(parents=True)
        (folder / "file").touch()
    outside = workspace / "outside"
    outside.mkdir()
    kept[-1].rename(outside / "target")
    kept[-1].symlink_to(outside / "target")
    with live(workspace):
        cleaning = clean(stage)
        assert sorted(cleaning.removed) == sorted(litter)
        assert all((folder / "file").exists() for folder in kept)
        left = "\n".join(cleaning.left)
        assert f"{kept[0]} was not made by steep" in left
        assert f"{root / 'stranger'} is not the folder of a stage" in left
        assert ".partial is in use" in left
    assert stage.complete()


def test_two_runs_in_one_folder_both_succeed(workspace):
    """Each runs its own stages; the stage that both need runs once."""
    with live(workspace):
        run(task(Second, workspace))
    assert task(First, workspace).complete()
    run(task(Waits, workspace))
    assert executions(workspace).count("waits") == 1
