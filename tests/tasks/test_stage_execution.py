"""Stages under reruns, kills and changed settings, by the number of their executions."""

import json
import subprocess
import sys
from typing import ClassVar

import pytest
from filelock import FileLock

from pipeline.core.errors import ConfigError
from pipeline.run.store import Store, read_manifest
from tasks.fingerprint import select
from tasks.run import RunFailed, clean, run
from tasks.status import status, why
from tests.tasks.counting_tasks import (
    ROOT,
    Complains,
    Copies,
    CopiesModel,
    First,
    FollowsComplaint,
    Second,
    Sleeps,
    WritesNothing,
    executions,
    task,
)
from tests.waiting import LIMIT, wait_until


def test_a_complete_stage_is_not_run_again(workspace):
    run(task(Second, workspace))
    before = executions(workspace)
    directory = run(task(Second, workspace))
    assert before == ["first", "second", "batch 0", "batch 1", "batch 2"]
    assert executions(workspace) == before
    assert (directory / "total.txt").read_text() == "15"  # top_k is 5: 0 + 5 + 10


def test_an_unrelated_setting_reruns_nothing(workspace):
    run(task(Second, workspace))
    before = executions(workspace)
    run(task(Second, workspace, "pairs.easy_outcome=0.4"))
    assert executions(workspace) == before


def test_a_relevant_setting_reruns_that_stage_and_what_follows(workspace):
    run(task(Second, workspace))
    run(task(Second, workspace, "retrieval.tau=0.3"))
    assert executions(workspace).count("first") == 1
    assert executions(workspace).count("second") == 2
    run(task(Second, workspace, "retrieval.top_k=6"))
    assert executions(workspace).count("first") == 2
    assert executions(workspace).count("second") == 3


def test_a_killed_stage_continues_from_its_checkpoint(workspace):
    (workspace / "kill").touch()
    with pytest.raises(RunFailed, match="second"):
        run(task(Second, workspace))
    assert not task(Second, workspace).complete()
    (workspace / "kill").unlink()
    directory = run(task(Second, workspace))
    assert executions(workspace).count("batch 0") == 1
    assert executions(workspace).count("batch 1") == 1
    assert sorted(path.name for path in directory.iterdir()) == ["manifest.json", "total.txt"]
    assert (directory / "total.txt").read_text() == "15"


@pytest.mark.parametrize("kind", [Copies, CopiesModel])
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
    directory = run(task(kind, workspace, f"data.root={source.parent}"))
    assert (directory / "copy.txt").read_text() == "first"
    assert executions(workspace) == [kind.stage] * 2


def test_a_raw_file_that_changed_before_its_stage_started_stops_the_stage(workspace):
    source = workspace / "data" / "numbers.txt"
    source.parent.mkdir()
    source.write_text("first")
    waiting = task(Copies, workspace, f"data.root={source.parent}")
    assert waiting.key.files
    source.write_text("later")
    with pytest.raises(RunFailed, match=r"numbers.txt: changed"):
        run(waiting)
    assert executions(workspace) == []


KILLED = """
import sys
from pathlib import Path
from tasks.fingerprint import select
from tasks.run import run
from tests.tasks.counting_tasks import Sleeps, task
run(task(Sleeps, Path(sys.argv[1])), workers=int(sys.argv[2]))
"""


@pytest.mark.parametrize("workers", [1, 2])
def test_stages_end_when_the_scheduler_is_killed(workspace, workers):
    scheduler = subprocess.Popen(
        [sys.executable, "-c", KILLED, str(workspace), str(workers)], cwd=ROOT
    )
    try:
        wait_until(lambda: executions(workspace) == ["sleeps"])
    finally:
        scheduler.kill()
        scheduler.wait()
    stage = task(Sleeps, workspace)
    with FileLock(stage.store.checkpoint_dir(stage.key).with_suffix(".lock"), timeout=LIMIT):
        pass  # a stage holds it until its process ends


@pytest.mark.parametrize("workers", [1, 2])
def test_force_reruns_one_stage_only(workspace, workers):
    run(task(Second, workspace))
    run(task(Second, workspace), force=True, workers=workers)
    assert executions(workspace).count("first") == 1
    assert executions(workspace).count("second") == 2


def test_an_input_error_is_one_sentence_and_status_2(workspace):
    with pytest.raises(RunFailed, match=r"questions.jsonl:7: answer is missing; add it") as caught:
        run(task(Complains, workspace))
    assert caught.value.exit_status == 2


def test_a_failure_of_an_earlier_run_is_not_reported_again(workspace):
    with pytest.raises(RunFailed, match="wrote nothing"):
        run(task(WritesNothing, workspace))
    with pytest.raises(RunFailed, match="answer is missing") as caught:
        run(task(FollowsComplaint, workspace))
    assert "wrote nothing" not in str(caught.value)
    assert caught.value.exit_status == 2


@pytest.mark.parametrize("workers", [0, -1])
def test_fewer_than_one_worker_is_refused(workspace, workers):
    with pytest.raises(ConfigError, match=f"workers is {workers}; expected at least 1"):
        run(task(First, workspace), workers=workers)
    assert executions(workspace) == []


def test_a_stage_without_output_is_not_done(workspace):
    with pytest.raises(RunFailed, match="wrote nothing"):
        run(task(WritesNothing, workspace))
    assert not task(WritesNothing, workspace).complete()


def test_why_names_the_setting_behind_a_stale_stage(workspace):
    run(task(Second, workspace))
    changed = task(Second, workspace, "retrieval.top_k=6")
    assert [row.state for row in status(changed)] == ["stale", "stale"]
    assert why(changed) == [
        "second: upstream stage first changed",
        "  first: setting retrieval.top_k: 5 -> 6",
    ]
    assert why(task(Second, workspace)) == ["second: done; nothing would run"]


def test_clean_removes_incomplete_directories_only(workspace):
    (workspace / "kill").touch()
    second = task(Second, workspace)
    with pytest.raises(RunFailed):
        run(second)
    assert clean(second).removed
    assert not any(
        path.name.endswith(".partial") for path in (second.store.root / "second").iterdir()
    )
    assert task(First, workspace).complete()


def test_the_manifest_records_key_counts_and_versions(workspace):
    manifest = read_manifest(run(task(First, workspace)))
    assert manifest["fingerprint"] == task(First, workspace).key.fingerprint
    assert manifest["key"]["settings"] == {
        "retrieval.top_k": 5
    }  # the name under which runs were kept
    assert manifest["counts"] == {"rows": 1}
    assert manifest["versions"]["luigi"]
    assert manifest["peak_memory_mb"] > 0


def test_manifests_of_one_stage_differ_in_their_settings(workspace):
    first = run(task(First, workspace))
    second = run(task(First, workspace, "retrieval.top_k=6"))
    assert first != second
    settings = [
        json.loads((path / "manifest.json").read_text())["key"]["settings"]
        for path in (first, second)
    ]
    assert settings == [{"retrieval.top_k": 5}, {"retrieval.top_k": 6}]


class Versioned(First):
    version: ClassVar[int] = 2


def test_a_new_stage_version_has_another_fingerprint(workspace):
    assert task(First, workspace).key.fingerprint != task(Versioned, workspace).key.fingerprint
    assert isinstance(task(First, workspace).store, Store)


def test_fingerprints_hold_no_settings_of_execution(workspace):
    settings = task(First, workspace, "sampling.shards=3").settings
    chosen = select(settings, ("sampling", "retrieval", "pairs.margin", "cache_dir"))
    assert chosen["pairs.margin"] == 0.1
    assert "samples" in chosen["sampling"]
    assert not {"shards", "batch"} & chosen["sampling"].keys()
    assert "service" not in chosen["retrieval"]
    assert "cache_dir" not in chosen
