"""Divided stages in the store: kills, other numbers of shards, status, --force, and fingerprints."""

import importlib
import shlex

import pytest

from tasks.run import RunFailed, clean, run, task_for, walk
from tasks.sharding import DivisibleTask, ShardedTask, ShardTask, unused_work
from tasks.status import status
from tests.tasks.counting_tasks import ROOT, Numbers, executions, task

WORKED = ["work 0", "work 1", "work 2"]


def numbers(workspace, *overrides):
    return task(Numbers, workspace, "sampling.shards=3", *overrides)


def states(stage):
    return {row.label: row.state for row in status(stage)}


def test_a_divided_stage_writes_the_bytes_of_a_whole_one(workspace):
    divided = run(numbers(workspace, "name=a"), workers=2)
    whole = run(task(Numbers, workspace, "name=b"))
    assert (divided / "numbers.txt").read_text() == (whole / "numbers.txt").read_text()
    assert divided.name == whole.name  # the fingerprint


@pytest.mark.parametrize("workers", [1, 3])
def test_a_killed_shard_continues_and_the_others_are_not_run_again(workspace, workers):
    (workspace / "kill").touch()
    with pytest.raises(RunFailed, match="numbers-shard-001"):
        run(numbers(workspace), workers=workers)
    assert states(numbers(workspace))["numbers"] == "missing"
    assert states(numbers(workspace))["numbers-shard-001"] == "failed"
    (workspace / "kill").unlink()
    run(numbers(workspace), workers=workers)
    lines = executions(workspace)
    assert sorted(line for line in lines if line.startswith("work")) == WORKED
    assert lines.count("part 1 of 3") == 2
    assert lines.count("numbers") == 1


def test_status_shows_the_shards_of_a_stage_also_when_it_is_complete(workspace):
    shards = {f"numbers-shard-00{number}": "missing" for number in range(3)}
    assert states(numbers(workspace)) == {"first": "missing", **shards, "numbers": "missing"}
    run(numbers(workspace))
    done = dict.fromkeys(shards, "done")
    assert states(numbers(workspace)) == {"first": "done", **done, "numbers": "done"}
    assert states(task(Numbers, workspace)) == {"first": "done", "numbers": "done"}  # not divided


@pytest.mark.parametrize("other", ["sampling.shards=2", "sampling.shards=1", "shards=5"])
def test_a_complete_stage_stays_complete_under_another_number_of_shards(workspace, other):
    run(numbers(workspace))
    before = executions(workspace)
    run(task(Numbers, workspace, other))
    assert executions(workspace) == before


def leave_unfinished(stage, workspace) -> None:
    """Kill the stage after the checkpoint of its second shard."""
    (workspace / "kill").touch()
    with pytest.raises(RunFailed):
        run(stage, workers=1)
    (workspace / "kill").unlink()


@pytest.mark.parametrize(
    ("other", "words"),
    [("sampling.shards=2", "in 2 shards now"), ("sampling.shards=1", "undivided now")],
)
def test_work_of_another_number_of_shards_is_told(
    workspace, capsys, other: str, words: str
) -> None:
    leave_unfinished(numbers(workspace), workspace)
    capsys.readouterr()
    assert list(unused_work(walk(numbers(workspace)))) == []  # it continues
    run(numbers(workspace, other))
    told = capsys.readouterr().out
    assert (
        f"warning: numbers: checkpoints or outputs of 3 of 3 shards are there, and it runs {words}"
        in told
    )
    assert "set its number of shards to 3 to continue" in told
    run(numbers(workspace, "sampling.shards=2"), force=True)
    assert list(unused_work(walk(numbers(workspace, "sampling.shards=5")))) == []  # it is complete


def test_checkpoints_of_an_undivided_stage_are_told_when_it_is_divided(workspace) -> None:
    stage = task(Numbers, workspace)
    checkpoint = stage.store.checkpoint_dir(stage.key) / "rows.npy"
    checkpoint.parent.mkdir(parents=True)
    checkpoint.touch()
    assert list(unused_work(walk(stage))) == []
    [line] = unused_work(walk(numbers(workspace)))
    assert "checkpoints or outputs of the undivided stage" in line
    assert "set its number of shards to 1" in line
    for shard in numbers(workspace).shards().values():
        run(shard)
    assert list(unused_work(walk(numbers(workspace)))) == []  # they are those of the join


def test_work_of_other_settings_is_not_told(workspace) -> None:
    leave_unfinished(numbers(workspace, "retrieval.top_k=9"), workspace)
    assert list(unused_work(walk(numbers(workspace, "sampling.shards=2")))) == []


def test_the_number_of_the_run_is_that_of_blocks_without_their_own(workspace):
    assert task(Numbers, workspace, "shards=4").shard_count == 4
    assert task(Numbers, workspace, "shards=4", "sampling.shards=2").shard_count == 2
    assert task(Numbers, workspace).shard_count == 1


def test_force_runs_the_shards_again(workspace):
    run(numbers(workspace))
    run(numbers(workspace), force=True)
    lines = executions(workspace)
    assert sorted(line for line in lines if line.startswith("work")) == sorted(2 * WORKED)
    assert (lines.count("first"), lines.count("numbers")) == (1, 2)
    assert numbers(workspace).complete()


def test_clean_tmp_removes_what_a_killed_shard_left(workspace):
    (workspace / "kill").touch()
    with pytest.raises(RunFailed):
        run(numbers(workspace))
    left = {path.parent.name for path in clean(numbers(workspace)).removed}
    assert left == {"numbers-shard"}


def test_the_command_that_makes_a_shard_again_runs_its_stage(workspace):
    shard = task_for("sample", "embedded", ("shards=2",), round=2).shard(1)
    command = shlex.split(shard.remake_command)
    assert command[command.index("run") :][:4] == ["run", "sample", "--round", "2"]
    index = task_for("index", "embedded", ("shards=2",)).shard(0)
    assert "--round" not in index.remake_command


def keys(config, *overrides):
    report = task_for("report", str(ROOT / f"configs/{config}.yaml"), overrides)
    return {stage.label: stage for stage in walk(report)}


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
def test_every_stage_with_a_model_is_divided_and_no_fingerprint_changes(
    config, divided, tmp_path, monkeypatch
):
    monkeypatch.chdir(ROOT)
    place = f"runs_dir={tmp_path}"
    plain, sharded = keys(config, place, "shards=1"), keys(config, place, "shards=3")
    assert {label: plain[label].key.fingerprint for label in plain} == {
        label: stage.key.fingerprint
        for label, stage in sharded.items()
        if not isinstance(stage, ShardTask)
    }
    stages = sharded.values()
    assert {s.stage for s in stages if isinstance(s, ShardedTask) and s.divided} == divided
    assert {s.stage for s in stages if isinstance(s, ShardTask)} == {f"{s}-shard" for s in divided}


def test_extraction_is_divided_only_where_a_model_extracts():
    extraction = ("graph.source=llm", "graph.model=m")
    assert task_for("graph", "embedded", extraction).divided
    assert not task_for("graph", "embedded", ("shards=2",)).divided
    assert task_for("sft-data", "embedded", extraction).divided  # gold paragraphs
    assert not task_for("sft-data", "embedded", ("shards=2",)).divided


def test_settings_of_memory_and_devices_keep_the_checkpoints_of_an_index(workspace):
    """Also where a shard has run out of memory and its settings are changed."""
    changes = ("index.gpu=true", "index.embedder.batch_size=1", "index.embedder.device=cpu")
    plain = task_for("index", "embedded", ("shards=2",))
    changed = task_for("index", "embedded", ("shards=2", *changes))
    for before, after in ((plain, changed), (plain.shard(1), changed.shard(1))):
        assert before.store.checkpoint_dir(before.key) == after.store.checkpoint_dir(after.key)


def test_the_functions_of_all_divisible_stages_exist():
    kinds = [kind for kind in kinds_below(DivisibleTask) if kind.__module__.startswith("tasks.")]
    entries = {entry for kind in kinds if (entry := getattr(kind, "entry", None))}
    entries |= {kind.merge_entry for kind in kinds if hasattr(kind, "merge_entry")}
    assert len(entries) > 20
    for entry in entries:
        module, _, function = entry.partition(":")
        assert callable(getattr(importlib.import_module(module), function)), entry


def kinds_below(kind):
    return [kind, *(below for other in kind.__subclasses__() for below in kinds_below(other))]
