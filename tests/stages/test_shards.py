"""Joining the shards of ``sample`` and ``score``."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from pipeline.core.errors import StoreError
from pipeline.core.record_io import read_records, write_parquet
from pipeline.core.records import Question, Trajectory
from pipeline.engine.context import StageContext
from pipeline.engine.files.shards import question_numbers
from pipeline.methods import method
from tasks import sample, score
from tests.smallest import small_config
from tests.stages.divided import write_manifest

# Seven questions of two samples each, in the order of an undivided run.
SAMPLED = [
    Trajectory(f"q{q}/{s}", f"q{q}", "nq", "?", "single", [], [], "tearag", "text", sample=s)
    for q in range(7)
    for s in range(2)
]
BY_QUESTION = [SAMPLED[start : start + 2] for start in range(0, len(SAMPLED), 2)]


def in_turns(count: int) -> list[list[Trajectory]]:
    """The shards of the stage sample."""
    return [[t for group in BY_QUESTION[k::count] for t in group] for k in range(count)]


def merged(
    tmp_path: Path,
    shards: list[list[Trajectory]],
    stage: str = "sample",
    sampled: list[Trajectory] = SAMPLED,
) -> Path:
    config = small_config(sampling={"samples": 2})
    inputs = {name: tmp_path / name for name in ("questions", "sample")}
    output = tmp_path / "output"
    output.mkdir(exist_ok=True)
    questions = [Question(f"q{number}", "nq", "?", [], "single") for number in range(7)]
    write_parquet(inputs["questions"] / "questions.parquet", questions, Question)
    write_parquet(inputs["sample"] / "trajectories.parquet", sampled, Trajectory)
    for number, trajectories in enumerate(shards):
        shard = inputs[f"shard-{number:03d}"] = tmp_path / f"shard-{number:03d}"
        types = {"rewards": method(config.grammar).terms} if stage == "score" else None
        write_parquet(shard / "trajectories.parquet", trajectories, Trajectory, types)
        (shard / "stops.json").write_text(json.dumps({"answer": len(trajectories)}))
        (shard / "timing.json").write_text(json.dumps({"total": 1.5}))
        write_manifest(shard, stage, {"trajectories": len(trajectories)})
    context = StageContext(config, stage, output, tmp_path / "checkpoints", inputs)
    counts = sample.merge(context) if stage == "sample" else score.merge(context)
    assert counts["trajectories"] == sum(map(len, shards))
    return output


@pytest.mark.parametrize("stage", ["sample", "score"])
def test_a_shard_with_other_trajectories_is_refused(tmp_path: Path, stage: str) -> None:
    first, second = in_turns(2)
    cases: list[tuple[list[list[Trajectory]], str]] = [
        ([[], second], "shard-000/.* has no trajectory in place of sample 0 of question q0"),
        ([first, second[1:]], "shard-001/.* has sample 1 of question q1 in place of sample 0 of"),
        ([first, second[:-2]], "shard-001/.* has no trajectory in place of sample 0 of q.* q5"),
        ([first, first], "shard-001/.* has sample 0 of question q0 in place of sample 0 of q.* q1"),
        ([[*first, *second], second], "shard-000/.* has sample 0 of question q1 in place of no tr"),
    ]
    for shards, problem in cases:
        with pytest.raises(StoreError, match=problem):
            merged(tmp_path, shards, stage)


def test_scored_shards_are_joined_in_the_order_of_the_samples(tmp_path: Path) -> None:
    """Also where the trajectories of a question do not follow each other, as in a recording."""
    mixed = [SAMPLED[place] for place in (0, 2, 1, 4, 3, 6, 5)]
    numbers = question_numbers(trajectory.question_id for trajectory in mixed)
    assert numbers == [0, 1, 0, 2, 1, 3, 2]
    shards = [[t for t, n in zip(mixed, numbers, strict=True) if n % 3 == k] for k in range(3)]
    for sampled, of_shards in ((SAMPLED, in_turns(3)), (mixed, shards)):
        output = merged(tmp_path, of_shards, "score", sampled)
        assert read_records(output / "trajectories.parquet", Trajectory) == sampled
