"""Forced runs and cleaning while another process runs the same stage."""

from contextlib import ExitStack, chdir, contextmanager

import pytest

from pipeline.engine import job
from pipeline.engine.run import RunFailed, run
from tests.cli.malformed_inputs import finished
from tests.tasks.counting_tasks import Second, Waits, background, executions, task
from tests.waiting import exit_status, wait_until


@pytest.fixture(autouse=True)
def impatient(monkeypatch):
    """The process of the test does not wait for another that runs the stage."""
    monkeypatch.setattr(job, "LOCK_SECONDS", 0.2)


@contextmanager
def live(workspace, *overrides):
    """Another process that runs the stage `Waits`, and must succeed at the end of the block."""
    stage = task(Waits, workspace, *overrides)
    with background(Waits, workspace, *overrides) as process:
        wait_until(lambda: (stage.store.checkpoint_dir(stage.key) / "checkpoint.txt").exists())
        yield
        (workspace / "release").touch()
        assert exit_status(process) == 0


def test_of_two_runs_of_a_folder_one_works_and_the_other_is_refused_or_uses_its_output(workspace):
    """Also with --force, which leaves checkpoint and log of the live run."""
    stage = task(Waits, workspace)
    log = workspace / "runs" / "embedded" / "logs" / "waits.log"
    with live(workspace):
        wait_until(lambda: "working" in log.read_text())
        before = log.read_text()
        for force in (False, True):
            with pytest.raises(RunFailed, match="waits: another process is running this") as caught:
                run(stage, force=force)
            assert caught.value.exit_status == 2
        assert (stage.store.checkpoint_dir(stage.key) / "checkpoint.txt").read_text() == "kept"
        assert log.read_text() == before
        assert not stage.store.failure_file(stage.key).exists()
        run(task(Second, workspace))  # another stage of the same folder
    assert run(stage) == stage.directory
    assert (stage.directory / "text.txt").read_text() == "kept"
    assert executions(workspace).count("waits") == 1


@pytest.mark.slow
def test_of_three_forced_runs_at_once_none_finds_its_stage_incomplete(workspace):
    (workspace / "release").touch()
    run(task(Waits, workspace))
    with ExitStack() as stack:
        runs = [background(Waits, workspace, force=True) for _ in range(3)]
        processes = [stack.enter_context(one) for one in runs]
        ended = {exit_status(process) for process in processes}
    assert 0 in ended <= {0, 2}
    assert task(Waits, workspace).complete()


def test_a_killed_forced_run_continues_without_force_and_leaves_files_that_others_read(workspace):
    directory = run(task(Second, workspace))
    log = workspace / "runs" / "embedded" / "logs" / "second.log"
    (workspace / "kill").touch()
    with pytest.raises(RunFailed):
        run(task(Second, workspace), force=True)
    assert (directory / "total.txt").read_text() == "15"
    assert not task(Second, workspace).complete()
    killed = log.read_text()
    (workspace / "kill").unlink()
    run(task(Second, workspace))
    assert executions(workspace).count("batch 0") == 2  # once in each of the two outputs
    assert executions(workspace).count("batch 1") == 2
    assert log.with_name("second.log.1").read_text() == killed
    assert len(list(log.parent.glob("second*"))) == 2


def test_gc_of_incomplete_outputs_leaves_a_live_stage_and_what_the_store_did_not_make(workspace):
    stage = task(Waits, workspace)
    root = stage.store.root
    litter = [
        root / "first" / name
        for name in ("0123456789abcdef", "0123456789abcdef.partial", ".0123456789abcdef.x1",
                     "0123456789abcdef.discarded-12")
    ]  # fmt: skip
    kept = [
        root / "first" / "thesis [red]",  # no markup of the terminal
        root / "first" / "0123456789abcdef0",
        root / "stranger" / "0123456789abcdef",
        root / "first" / "fedcba9876543210",
    ]
    for folder in [*litter, *kept]:
        folder.mkdir(parents=True)
        (folder / "file").touch()
    kept[-1].rename(workspace / "target")
    kept[-1].symlink_to(workspace / "target")
    with live(workspace), chdir(workspace):
        printed = finished("gc", "--incomplete", "--set", f"runs_dir={workspace / 'runs'}")
        assert [folder for folder in litter if f"{folder}\n" not in printed] == []
        assert [folder for folder in litter if folder.exists()] == []
        assert all((folder / "file").exists() for folder in kept)
        assert f"{kept[0]} was not made by steep" in printed
        assert f"{root / 'stranger'} is not the folder of a stage" in printed
        assert ".partial is in use" in printed
        assert printed.endswith("4 directories and files removed\n")
    assert stage.complete()
