"""Stages under reruns, kills and changed settings, by the number of their executions."""

import os
import signal

import luigi
import pytest
from filelock import FileLock

from pipeline.core.errors import StoreError
from pipeline.engine.job import run_stage_of
from pipeline.engine.run import RunFailed, run
from pipeline.engine.status import status, why
from pipeline.engine.store import read_manifest
from tests.tasks.counting_tasks import (
    Complains,
    Copies,
    CopiesModel,
    First,
    Second,
    Waits,
    Warns,
    WritesNothing,
    executions,
    new_process,
    task,
)
from tests.tasks.small_run import commit_text
from tests.waiting import LIMIT, wait_until

# As many as the shipped runs have; `make check-all` also tries one.
WORKERS = pytest.mark.parametrize("workers", [2, pytest.param(1, marks=pytest.mark.slow)])


def test_luigi_s_own_command_runs_the_stages(workspace):
    made = task(Second, workspace)
    stages = [made, *made.requires().values()]
    assert [one.output().exists() for one in stages] == [False, False]
    with pytest.raises(StoreError, match="first is no longer complete"):
        run_stage_of(made)
    assert luigi.build([made], local_scheduler=True, workers=2, log_level="WARNING")
    for one in stages:
        assert one.output().exists()
        assert one.output().path == str(one.directory / "manifest.json")
    assert made.input()["first"].path == stages[1].output().path
    assert (made.directory / "total.txt").read_text() == "15"
    before = executions(workspace)
    assert before == ["first", "second", "batch 0", "batch 1", "batch 2"]
    assert luigi.build([task(Second, workspace)], local_scheduler=True, log_level="WARNING")
    assert executions(workspace) == before


def test_a_run_goes_on_when_the_reader_of_its_lines_has_ended(workspace, monkeypatch):
    reading, writing = os.pipe()
    os.close(reading)
    with open(writing, "w", encoding="utf-8", closefd=False) as stream:
        monkeypatch.setattr("sys.stdout", stream)
        assert (run(task(Second, workspace)) / "total.txt").read_text() == "15"
        monkeypatch.undo()
        os.dup2(os.open(os.devnull, os.O_WRONLY), writing)  # takes what the stream still holds
    os.close(writing)


def test_only_a_forced_stage_or_one_with_changed_settings_and_what_follows_is_run_again(workspace):
    directory = run(task(Second, workspace))
    before = executions(workspace)
    assert before == ["first", "second", "batch 0", "batch 1", "batch 2"]
    assert (directory / "total.txt").read_text() == "15"  # top_k is 5: 0 + 5 + 10
    assert run(task(Second, workspace, "pairs.easy_outcome=0.4")) == directory
    assert executions(workspace) == before
    assert why(task(Second, workspace)) == ["second: done; nothing would run"]
    for more, force, first, second in (
        (("retrieval.tau=0.3",), False, 1, 2),
        (("retrieval.top_k=6",), False, 2, 3),
        ((), True, 2, 4),
    ):
        run(task(Second, workspace, *more), force=force, workers=2)
        counts = [executions(workspace).count(name) for name in ("first", "second")]
        assert counts == [first, second]


def test_the_manifest_records_key_counts_versions_and_warnings_which_end_the_stages_line(
    workspace, capsys: pytest.CaptureFixture[str]
):
    stage = task(Warns, workspace)
    manifest = read_manifest(run(stage))
    assert " s: 2 rows; 2 of 2 rows are odd\n" in capsys.readouterr().out
    assert manifest["notes"] == {"warnings": ["2 of 2 rows are odd"]}
    assert manifest["fingerprint"] == stage.key.fingerprint
    # The name of the setting under which runs were kept.
    assert manifest["key"]["settings"] == {"retrieval.top_k": 5}
    assert manifest["counts"] == {"rows": 2}
    assert manifest["versions"]["luigi"]
    assert manifest["peak_memory_mb"] > 0


@pytest.mark.usefixtures("new_processes")
def test_a_killed_stage_continues_from_its_checkpoint(workspace):
    (workspace / "kill").touch()
    stage = task(Second, workspace)
    with pytest.raises(RunFailed, match="second"):
        run(stage)
    failed = status(stage)[1]
    assert failed.state == "failed"
    assert "killed by SIGKILL" in failed.message
    (workspace / "kill").unlink()
    directory = run(stage)
    assert [row.state for row in status(stage)] == ["done", "done"]
    assert executions(workspace).count("batch 0") == 1
    assert executions(workspace).count("batch 1") == 1
    names = sorted(path.name for path in directory.iterdir())
    assert names == ["README.md", "manifest.json", "total.txt"]
    assert (directory / "total.txt").read_text() == "15"
    left = {path.name for path in directory.parent.iterdir()}
    assert left == {directory.name, f"{directory.name}.lock"}


@pytest.mark.parametrize("kind", [pytest.param(Copies, marks=pytest.mark.slow), CopiesModel])
def test_a_raw_file_that_changes_while_a_stage_runs_fails_the_stage(workspace, kind):
    source = workspace / "data" / "numbers.txt"
    source.parent.mkdir()
    source.write_text("first")
    (workspace / "kill").touch()
    name = source if kind is Copies else source.parent
    with pytest.raises(
        RunFailed, match=rf"{name}: changed while the stage ran, so nothing was stored; run"
    ) as caught:
        run(task(kind, workspace, f"data.root={source.parent}"))
    assert caught.value.exit_status == 2
    assert not list((workspace / "runs").rglob("manifest.json"))
    (workspace / "kill").unlink()
    source.write_text("first")  # as before the first attempt, whose checkpoint may hold either
    waiting = task(kind, workspace, f"data.root={source.parent}")
    assert waiting.key.files
    source.write_text("later")
    with pytest.raises(RunFailed, match=rf"{name}: changed before the stage started"):
        run(waiting)
    source.write_text("first")
    assert (run(waiting) / "copy.txt").read_text() == "first"
    assert executions(workspace) == [kind.stage] * 2


@WORKERS
def test_stages_end_when_the_scheduler_is_killed(workspace, workers):
    with new_process(Waits, workspace, workers=workers, popen={}) as scheduler:
        wait_until(lambda: executions(workspace) == ["waits"])
        scheduler.kill()
    stage = task(Waits, workspace)
    with FileLock(stage.store.checkpoint_dir(stage.key).with_suffix(".lock"), timeout=LIMIT):
        pass  # a stage holds it until its process ends


def ignore_nothing():
    """A shell's background run, as this test may be part of, ignores SIGINT."""
    signal.signal(signal.SIGINT, signal.default_int_handler)


@WORKERS
def test_stages_end_with_an_interrupted_run(workspace, workers):
    with new_process(
        Waits, workspace, workers=workers, popen={"preexec_fn": ignore_nothing}
    ) as scheduler:
        wait_until(lambda: executions(workspace) == ["waits"])
        scheduler.send_signal(signal.SIGINT)
        assert scheduler.wait(LIMIT) == 130
    (row,) = status(task(Waits, workspace))
    assert row.state == "missing"


def test_no_stage_is_started_by_a_fork_of_the_run(workspace):
    """A fork of a process with threads, as pyarrow and torch start them, can crash or hang."""
    forks = []
    os.register_at_fork(before=lambda: forks.append("a fork"))
    run(task(Second, workspace), workers=2)
    assert executions(workspace)[:2] == ["first", "second"]
    assert forks == []


def test_a_failure_of_an_earlier_run_is_not_reported_again(workspace):
    with pytest.raises(RunFailed, match="wrote nothing"):
        run(task(WritesNothing, workspace))
    with pytest.raises(RunFailed, match="answer is missing") as caught:
        run(task(Complains, workspace))
    assert "wrote nothing" not in str(caught.value)
    assert caught.value.exit_status == 2


def test_only_the_report_of_a_run_is_copied_to_its_directory(workspace):
    other = commit_text(task(First, workspace), "<html>", "report.html")
    assert run(task(First, workspace)) == other
    assert not list(other.parents[2].glob("report.html"))
