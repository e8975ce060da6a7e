"""A stage whose inputs were made again with the same content is not run again."""

import inspect
import shutil
import sys

import pytest

from pipeline.engine.run import RunFailed, run
from pipeline.engine.stage import walk
from pipeline.engine.status import status, why
from tasks import task_for
from tests.tasks.counting_tasks import (
    FollowsAll,
    FollowsTens,
    FollowsTwice,
    Rounded,
    executions,
    task,
)

TENS, EXACT = "name=tens.txt", "name=exact.txt"  # the file that `counting_stages.follows` copies


def states(stage) -> dict[str, str]:
    return {row.label: row.state for row in status(stage)}


def test_a_stage_whose_input_comes_out_the_same_is_reused_and_so_are_those_after_it(workspace):
    def follows_twice(top_k: int):
        return task(FollowsTwice, workspace, TENS, f"retrieval.top_k={top_k}")

    run(follows_twice(31))
    assert executions(workspace) == ["rounded", "follows-tens", "follows-twice"]
    first = task(FollowsTens, workspace, TENS, "retrieval.top_k=31").directory
    changed = follows_twice(32)
    stale = {"rounded": "stale", "follows-tens": "stale", "follows-twice": "stale"}
    assert states(changed) == stale
    run(changed, workers=2)
    assert states(changed) == {
        "rounded": "done",
        "follows-tens": "reused",
        "follows-twice": "reused",
    }
    [line] = why(task(FollowsTens, workspace, TENS, "retrieval.top_k=32"))
    assert f"reused; nothing would run, because its inputs have the content that {first}" in line
    assert executions(workspace)[3:] == ["rounded"]
    for name in (f"{first.name}-old", f"{first.name}.discarded-9"):  # a copy, a killed removal
        shutil.copytree(first, first.with_name(name)).joinpath("copy.txt").unlink()
        (first.with_name(name) / "manifest.json").touch()
    assert task(FollowsTens, workspace, TENS, "retrieval.top_k=32").directory == first
    run(follows_twice(41))
    assert executions(workspace)[4:] == ["rounded", "follows-tens", "follows-twice"]


def test_files_that_a_stage_does_not_read_and_files_of_seconds_do_not_count(workspace, monkeypatch):
    run(task(FollowsAll, workspace, EXACT, "retrieval.top_k=33"))
    run(task(FollowsAll, workspace, EXACT, "retrieval.top_k=34"))
    assert executions(workspace).count("follows-all") == 2  # exact.txt differs
    monkeypatch.setenv("EXACT", "the same")
    run(task(FollowsAll, workspace, EXACT, "retrieval.top_k=31"))
    run(task(FollowsAll, workspace, EXACT, "retrieval.top_k=32"))
    assert executions(workspace).count("follows-all") == 3  # only timing.json differs


def test_an_input_that_is_forced_into_another_content_makes_stages_after_it_stale(
    workspace, monkeypatch
):
    stage = task(FollowsAll, workspace, EXACT)
    run(stage)
    monkeypatch.setenv("EXACT", "another")
    run(task(Rounded, workspace, EXACT), force=True)
    assert states(stage) == {"rounded": "done", "follows-all": "stale"}
    assert why(stage) == [
        "follows-all: upstream stage rounded was made again and has another content"
    ]
    assert (run(stage) / "copy.txt").read_text() == "another"
    assert states(stage) == {"rounded": "done", "follows-all": "done"}


@pytest.mark.slow
def test_checkpoints_from_inputs_with_another_content_are_not_used(workspace, monkeypatch):
    stage = task(FollowsAll, workspace, EXACT)
    (workspace / "kill").touch()
    with pytest.raises(RunFailed, match="follows-all"):
        run(stage)
    (workspace / "kill").unlink()
    monkeypatch.setenv("EXACT", "another")
    run(task(Rounded, workspace, EXACT), force=True)
    assert (run(stage) / "copy.txt").read_text() == "another"


def test_a_run_of_many_rounds_needs_no_deep_recursion(workspace, monkeypatch):
    monkeypatch.chdir(workspace)
    last = task_for("train", "embedded", ("rounds=100",), round=100)
    limit = sys.getrecursionlimit()
    sys.setrecursionlimit(len(inspect.stack()) + 100)
    try:
        assert not last.complete()
        assert len(list(walk(last))) == 410
    finally:
        sys.setrecursionlimit(limit)
