"""Divided stages in the store: kills, other numbers of shards, status, --force, and fingerprints."""

import pytest

from pipeline.engine.run import RunFailed, run
from pipeline.engine.shards import DivisibleTask, ShardTask
from pipeline.engine.status import status, why
from pipeline.engine.store import read_manifest
from tasks import task_for
from tests.tasks.counting_tasks import Numbers, executions, task
from tests.tasks.declared import by_label

WORKED = ["work 0", "work 1", "work 2"]


def numbers(workspace, *overrides):
    return task(Numbers, workspace, "sampling.shards=3", *overrides)


def states(stage):
    return {row.label: row.state for row in status(stage)}


def test_a_divided_stage_writes_the_bytes_of_a_whole_one_and_stays_complete(workspace):
    shards = {f"numbers-shard-00{number}": "missing" for number in range(3)}
    assert states(numbers(workspace)) == {"first": "missing", **shards, "numbers": "missing"}
    divided = run(numbers(workspace), workers=2)
    rows = {row.label: row for row in status(numbers(workspace))}
    assert {label: row.state for label, row in rows.items()} == dict.fromkeys(rows, "done")
    costs = read_manifest(divided)["shards"]
    assert {f"numbers-{name}": cost["wall_seconds"] for name, cost in costs.items()} == {
        label: rows[label].wall_seconds for label in shards
    }
    before = executions(workspace)
    for other in ("sampling.shards=2", "sampling.shards=1", "shards=5"):
        assert run(task(Numbers, workspace, other)) == divided
    assert executions(workspace) == before
    content = (divided / "numbers.txt").read_text()
    run(numbers(workspace), force=True)
    lines = executions(workspace)
    assert sorted(line for line in lines if line.startswith("work")) == sorted(2 * WORKED)
    assert (lines.count("first"), lines.count("numbers")) == (1, 2)
    whole = run(task(Numbers, workspace, f"runs_dir={workspace / 'whole'}"))
    assert (whole / "numbers.txt").read_text() == content
    assert whole.name == divided.name  # the fingerprint


def test_a_killed_shard_continues_and_the_others_are_not_run_again(workspace):
    (workspace / "kill").touch()
    with pytest.raises(RunFailed, match="numbers-shard-001"):
        run(numbers(workspace), workers=3)
    assert states(numbers(workspace))["numbers"] == "missing"
    assert states(numbers(workspace))["numbers-shard-001"] == "failed"
    [line] = why(numbers(workspace))
    assert line.startswith("numbers-shard-001: failed: its process")
    (workspace / "kill").unlink()
    run(numbers(workspace), workers=3)
    lines = executions(workspace)
    assert sorted(line for line in lines if line.startswith("work")) == WORKED
    assert lines.count("part 1 of 3") == 2
    assert lines.count("numbers") == 1


@pytest.mark.parametrize(
    ("config", "divided"),
    [
        ("embedded", {"index", "sample", "score", "evaluate-policy"}),
        ("embedded-prograph", {"hyper-index", "sample", "score", "evaluate-policy"}),
        (
            "embedded-hiprag",
            {"index", "sft-data", "sample", "score", "judge", "evaluate-policy", "judge-policy"},
        ),
    ],
)
def test_every_stage_with_a_model_is_divided_and_no_fingerprint_changes(config, divided, elsewhere):
    plain, sharded = (by_label(f"shards={count}", config=config) for count in (1, 3))
    shards = {label for label, stage in sharded.items() if isinstance(stage, ShardTask)}
    assert {label: stage.key for label, stage in plain.items()} == {
        label: sharded[label].key for label in sharded.keys() - shards
    }
    stages = sharded.values()
    assert {s.stage for s in stages if isinstance(s, DivisibleTask) and s.divided} == divided
    assert {sharded[label].stage for label in shards} == {f"{stage}-shard" for stage in divided}


def test_extraction_is_divided_only_where_a_model_extracts():
    extraction = ("graph.source=llm", "graph.model=m", "shards=2")
    assert task_for("graph", "embedded", extraction).divided
    assert not task_for("graph", "embedded", ("shards=2",)).divided
    assert task_for("sft-data", "embedded", extraction).divided  # gold paragraphs
    assert not task_for("sft-data", "embedded", ("shards=2",)).divided
