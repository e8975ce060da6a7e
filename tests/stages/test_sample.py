"""The stage ``sample``: shards, checkpoints and policies, with a tiny random model as engine.

The retrieval variant is ``none``, so no index is needed; tests of the sampler cover retrieval.
"""

import json
from dataclasses import replace
from pathlib import Path

import pytest

from pipeline import config
from pipeline.core.errors import InputError
from pipeline.core.record_io import read_records, write_parquet
from pipeline.core.records import Question, Trajectory
from pipeline.graph.build import Extracted
from pipeline.graph.facts import Facts
from pipeline.graph.tables import write_hyperedges
from pipeline.rollout.settings import RolloutSettings
from pipeline.run.context import StageContext
from pipeline.stages.policy import rollout_settings
from pipeline.stages.policy_rollout import roll_out_policy
from pipeline.stages.sample import run
from pipeline.stages.score import run as score
from tests.llm.small_models import small_adapter, small_model

QUESTIONS = [Question(f"q{n}", "toy", f"Q{n}?", ["Rome"], "single") for n in range(7)]


@pytest.fixture(scope="module")
def inputs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    root = tmp_path_factory.mktemp("inputs")
    model = small_model(root / "model")
    small_adapter(model, root / "policy" / "adapter")
    (root / "policy" / "lineage.json").write_text(json.dumps({"policy": "fingerprint"}))
    write_parquet(root / "corpus" / "questions" / "sampling.parquet", QUESTIONS, Question)
    return {"corpus": root / "corpus", "policy": root / "policy", "model": model}


@pytest.fixture
def context(inputs: dict[str, Path], tmp_path: Path) -> StageContext:
    values = {
        "name": "toy",
        "data": {},
        "corpus": {"files": [{"path": "unused"}]},
        "graph": {"source": "annotated", "path": "triplets.jsonl"},
        "index": {"embedder": {"model": "none"}},
        "retrieval": {"variant": "none", "reranker": {"kind": "biencoder"}},
        "model": {"base": str(inputs["model"])},
        "engine": {"kind": "transformers", "dtype": "float32", "max_model_len": 64},
        "prompt": {"system": "S"},
        "sft_data": {"sizes": {1: 1}},
        "sft": {"learning_rate": 0.1, "batch_size": 1},
        "dpo": {"learning_rate": 0.1, "batch_size": 1},
        "sampling": {"samples": 2, "max_segment_tokens": 6, "batch": 2, "in_flight": 4},
    }
    checkpoint_dir, output = tmp_path / "checkpoints", tmp_path / "output"
    checkpoint_dir.mkdir()
    output.mkdir()
    return StageContext(
        config=config.Config.model_validate(values),
        stage="sample",
        output=output,
        checkpoint_dir=checkpoint_dir,
        inputs=inputs,
        round=1,
        seed=3,
    )


def trajectories(context: StageContext) -> list[Trajectory]:
    return read_records(context.output / "trajectories.parquet", Trajectory)


def test_every_question_of_a_shard_gets_its_samples_in_order(context: StageContext):
    counts = run(context)
    assert counts == {"questions": 7, "trajectories": 14}
    written = trajectories(context)
    expected = [(f"q{n}", sample) for n in range(7) for sample in range(2)]
    assert [(trajectory.question_id, trajectory.sample) for trajectory in written] == expected
    assert {trajectory.policy for trajectory in written} == {"fingerprint"}
    timing = json.loads((context.output / "timing.json").read_text())
    assert timing["generated_tokens"] == sum(len(trajectory.token_ids) for trajectory in written)
    assert sum(json.loads((context.output / "stops.json").read_text()).values()) == 14


def outputs(context: StageContext) -> dict[str, str]:
    return {trajectory.trajectory_id: trajectory.output for trajectory in trajectories(context)}


def test_the_shards_together_give_the_trajectories_of_one_run(context: StageContext):
    run(context)
    expected = outputs(context)
    union: dict[str, str] = {}
    for number in range(3):
        shard = replace(
            context, shard=number, shards=3, checkpoint_dir=context.checkpoint_dir / f"{number}"
        )
        run(shard)
        assert not union.keys() & outputs(shard).keys()
        union.update(outputs(shard))
    assert union == expected


def test_a_killed_run_continues_after_its_last_checkpoint(context: StageContext, tmp_path: Path):
    run(context)
    expected = trajectories(context)
    files = sorted((context.checkpoint_dir / "paths").glob("paths-*.parquet"))
    assert len(files) == 4  # 7 questions, 2 per batch
    kept = {file: file.stat().st_mtime_ns for file in files[:2]}
    for file in files[2:]:
        file.unlink()
    run(context)
    assert trajectories(context) == expected
    assert {file: file.stat().st_mtime_ns for file in files[:2]} == kept


def test_the_adapter_changes_the_samples(context: StageContext, inputs: dict[str, Path]):
    token_ids = {}
    for name, policy in (("base", None), ("adapter", inputs["policy"])):
        separate = replace(context, checkpoint_dir=context.checkpoint_dir / name)
        sampled, _ = roll_out_policy(separate, QUESTIONS, policy, temperature=0.0, samples=1)
        token_ids[name] = [trajectory.token_ids for trajectory in sampled]
    assert token_ids["base"] != token_ids["adapter"]


def test_rollout_settings_are_those_of_the_configuration(context: StageContext):
    expected = RolloutSettings(system="S", temperature=0.5, max_segment_tokens=6, in_flight=4)
    assert rollout_settings(context.config, temperature=0.5) == expected


def test_a_repeated_question_id_is_an_error(context: StageContext):
    with pytest.raises(InputError, match="q0 occurs twice"):
        roll_out_policy(context, [*QUESTIONS, QUESTIONS[0]], None, temperature=0.0, samples=1)


def test_a_policy_without_lineage_is_an_error(context: StageContext, tmp_path: Path):
    with pytest.raises(InputError, match="train it again"):
        roll_out_policy(context, QUESTIONS, tmp_path, temperature=0.0, samples=1)


def test_value_estimates_continue_the_sampled_trajectories_with_the_same_policy(
    context: StageContext, tmp_path: Path
):
    """The random policy never searches, so the only state of a question is the question alone."""
    run(context)
    facts, output = Facts(), tmp_path / "scored"
    for folder in (output, tmp_path / "graph"):
        folder.mkdir()
    extracted = [Extracted("c", "T", ["Ann met Bo.", ["Ann", "Bo"]])]
    write_hyperedges(tmp_path / "graph", facts.edges(extracted), facts.entities)
    values = context.config.model_dump()
    values |= {"grammar": "prograph", "cache_dir": str(tmp_path / "cache")}
    values["rewards"] |= {"kind": "prograph"}
    inputs = {**context.inputs, "sample": context.output, "graph": tmp_path / "graph"}
    changed = {"config": config.Config.model_validate(values), "inputs": inputs, "output": output}
    assert score(replace(context, **changed)) == {"trajectories": 14, "retrieval_error": 0}
    cost = json.loads((output / "progress.json").read_text())
    assert (cost["states"], cost["distinct"], cost["continuations"]) == (14, 7, 28)
    assert cost["generated_tokens"] > 28
    scored = read_records(output / "trajectories.parquet", Trajectory)
    assert all(len(trajectory.rewards["steps"]) == 1 for trajectory in scored)
