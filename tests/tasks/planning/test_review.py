"""The plan that a run keeps, and what its stages took beside it."""

import json

import pytest

from pipeline.core.errors import InputError
from tasks.planning.review import FILE, compare, read_kept
from tasks.run import RunFailed, run
from tests.tasks.counting_tasks import FollowsComplaint, Second, executions, task


def run_dir(workspace):
    return workspace / "runs" / "embedded"


def test_a_run_keeps_the_plan_it_started_with_and_its_wall_time(workspace):
    run(task(Second, workspace))
    first = read_kept(run_dir(workspace))
    assert [stage.label for stage in first.plan.unknown] == ["first", "second"]
    run(task(Second, workspace, "retrieval.top_k=6"))
    kept = read_kept(run_dir(workspace))
    assert not kept.plan.unknown  # the first run tells
    assert kept.wall_seconds is not None
    assert kept.wall_seconds > 0
    rows = compare(kept)
    assert [row.expected.label for row in rows] == ["first", "second"]
    for row in rows:
        assert row.measured is not None
        assert row.expected.seconds is not None
        assert row.seconds is not None
        assert row.seconds > row.measured.seconds  # with the start of the process
        assert row.expected.amounts["rows"] == row.measured.amounts["rows"]


def test_a_run_without_work_keeps_the_plan_of_the_last_one(workspace):
    run(task(Second, workspace))
    before = (run_dir(workspace) / FILE).read_bytes()
    run(task(Second, workspace))
    assert (run_dir(workspace) / FILE).read_bytes() == before


def test_a_failed_run_has_no_wall_time_and_its_stages_have_not_run(workspace):
    with pytest.raises(RunFailed):
        run(task(FollowsComplaint, workspace))
    kept = read_kept(run_dir(workspace))
    assert kept.wall_seconds is None
    assert [row.measured for row in compare(kept)] == [None, None]


def test_a_forced_stage_is_planned_by_its_own_output(workspace):
    run(task(Second, workspace))
    run(task(Second, workspace), force=True)
    assert executions(workspace).count("second") == 2
    kept = read_kept(run_dir(workspace))
    assert [stage.label for stage in kept.plan.running] == ["second"]
    assert kept.plan.running[0].source == "embedded second"


@pytest.mark.parametrize("content", ["", "[]", "{}", '{"plan": {"stages": [{}], "workers": 1}}'])
def test_a_plan_that_cannot_be_read_is_refused(workspace, content):
    with pytest.raises(InputError, match="no such file"):
        read_kept(run_dir(workspace))
    run_dir(workspace).mkdir(parents=True)
    (run_dir(workspace) / FILE).write_text(content)
    with pytest.raises(InputError, match=r"plan\.json"):
        read_kept(run_dir(workspace))


def test_manifests_hold_the_launch_and_whether_work_was_resumed(workspace):
    (workspace / "kill").touch()
    with pytest.raises(RunFailed):
        run(task(Second, workspace))
    (workspace / "kill").unlink()
    directory = run(task(Second, workspace))
    manifest = json.loads((directory / "manifest.json").read_text())
    assert manifest["resumed"] is True
    assert manifest["work"] == {}
    assert 0 < manifest["launch_seconds"] < 600
    first = json.loads(
        (task(Second, workspace).upstream()["first"].directory / "manifest.json").read_text()
    )
    assert first["resumed"] is False
