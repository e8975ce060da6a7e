"""Stage ``evaluate-policy``: one measured trajectory per held-out question."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from pipeline.core.errors import StoreError
from pipeline.core.model_files import model_hash
from pipeline.core.record_io import read_records, write_parquet
from pipeline.core.records import Question, Trajectory
from pipeline.core.verdicts import Verdict
from pipeline.engine.context import StageContext
from pipeline.evaluation.measured import merge_policies
from pipeline.rollout.sampler import roll_out
from pipeline.training.lineage import policy_fingerprint
from tasks.evaluate_policy import run
from tests.llm.small_models import small_adapter
from tests.smallest import small_config
from tests.stages.fabricated_run import trajectory, write_evaluation
from tests.stages.question_stages import stage_context


def question(name: str, part: str | None) -> Question:
    return Question(name, "musique", f"Where is {name}?", ["Ostar"], "multi", split_part=part)


def context(tmp_path: Path, questions: list[Question], model: Path) -> StageContext:
    inputs = {"questions": tmp_path / "questions", "policy": tmp_path / "policy"}
    write_parquet(inputs["questions"] / "questions.parquet", questions, Question)
    config = small_config(
        runs_dir=str(tmp_path / "runs"),
        retrieval={"variant": "none"},
        model={"base": str(model)},
        engine={"kind": "transformers", "dtype": "float32", "max_model_len": 256},
        sampling={"max_segment_tokens": 8, "max_total_tokens": 24},
    )
    return stage_context(tmp_path, "evaluate-policy", config, inputs)


def test_every_question_has_one_measured_trajectory_and_keeps_its_part(
    model: Path, tmp_path: Path
) -> None:
    """A random model gives no answers; its malformed outputs are measured, not refused."""
    small_adapter(model, tmp_path / "policy" / "adapter")
    lineage = {"policy": "invented", "base": str(model), "round": 0}
    (tmp_path / "policy" / "lineage.json").write_text(json.dumps(lineage))
    stage = context(tmp_path, [question("Vell", None), question("Ime", "unseen")], model)
    assert run(stage) == {"questions": 2, "trajectories": 2}
    trajectories = read_records(stage.output / "trajectories.parquet", Trajectory)
    assert [trajectory.question_id for trajectory in trajectories] == ["Vell", "Ime"]
    rows = json.loads((stage.output / "rows.json").read_text())
    assert rows["split"] == "test"
    assert rows["seconds"]["generation"] > 0
    measured = [(o["question_id"], o["part"], o["em"], o["thinking"]) for o in rows["outcomes"]]
    assert measured == [
        ("Vell", None, 0.0, trajectories[0].tokens.thinking),
        ("Ime", "unseen", 0.0, trajectories[1].tokens.thinking),
    ]
    assert 0 < trajectories[0].tokens.thinking <= 24


def test_any_policy_is_evaluated_and_named_by_its_content(model: Path, tmp_path: Path) -> None:
    """The base model without an adapter, and a bare adapter without a lineage, which write other tokens."""
    adapter = small_adapter(model, tmp_path / "from elsewhere")
    stage = context(tmp_path, [], model)
    write_parquet(tmp_path / "questions.parquet", [question("Vell", "unseen")], Question)
    tokens = {}
    for name, policy in (("base", {}), ("adapter", {"policy": adapter})):
        one = replace(
            stage,
            stage="evaluate-any",
            output=tmp_path / f"{name} evaluated",
            checkpoint_dir=tmp_path / f"{name}.partial",
            inputs={"questions": tmp_path, **policy},
        )
        one.output.mkdir(exist_ok=True)
        assert run(one) == {"questions": 1, "trajectories": 1}
        [sampled] = read_records(one.output / "trajectories.parquet", Trajectory)
        tokens[sampled.policy] = sampled.token_ids
        rows = json.loads((one.output / "rows.json").read_text())
        assert [(o["question_id"], o["part"]) for o in rows["outcomes"]] == [("Vell", "unseen")]
    sha = model_hash(model)
    assert list(tokens) == [sha, policy_fingerprint(adapter, sha)]
    assert tokens[sha] != tokens[policy_fingerprint(adapter, sha)]


def test_several_samples_are_the_same_after_a_kill(
    model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Five questions of three samples with seeds of their own, which differ at temperature 1."""
    stage = context(tmp_path, [question(f"q{n}", None) for n in range(5)], model)
    evaluation = stage.config.evaluation.model_copy(update={"temperature": 1.0})
    sampling = stage.config.sampling.model_copy(update={"batch": 1, "in_flight": 2})
    config = stage.config.model_copy(update={"evaluation": evaluation, "sampling": sampling})
    inputs = {"questions": stage.inputs["questions"]}
    stage = replace(stage, config=config, inputs=inputs, facts={"samples": 3}, stage="evaluate-any")

    def started(name: str, **fields: Any) -> StageContext:
        (tmp_path / name).mkdir(exist_ok=True)
        folders = {"output": tmp_path / name, "checkpoint_dir": tmp_path / f"{name}.partial"}
        return replace(stage, **folders, **fields)

    def outcome(name: str) -> tuple[list[Trajectory], list[dict[str, Any]]]:
        rows = json.loads((tmp_path / name / "rows.json").read_text())
        return read_records(tmp_path / name / "trajectories.parquet", Trajectory), rows["outcomes"]

    assert run(started("whole")) == {"questions": 5, "trajectories": 15}
    trajectories, outcomes = outcome("whole")
    assert [(t.question_id, t.sample) for t in trajectories] == [
        (f"q{n}", k) for n in range(5) for k in range(3)
    ]
    assert len({t.seed for t in trajectories}) == 15
    assert len({tuple(t.token_ids) for t in trajectories[:3]}) == 3
    assert [row["question_id"] for row in outcomes] == [f"q{n}" for n in range(5)]
    thinking = [t.tokens.thinking for t in trajectories[:3]]
    assert outcomes[0]["sampled"]["thinking"] == sum(thinking) / 3

    rolled_out: list[str] = []

    def stopped(*arguments: Any, **named: Any) -> Iterator[Trajectory]:
        for one in roll_out(*arguments, **named):
            rolled_out.append(one.question_id)
            yield one
            if len(rolled_out) == 8:
                raise KeyboardInterrupt

    monkeypatch.setattr("pipeline.rollout.sampler.roll_out", stopped)
    with pytest.raises(KeyboardInterrupt):
        run(started("killed"))
    run(started("killed"))
    assert outcome("killed") == outcome("whole")
    assert 15 < len(rolled_out) < 8 + 15  # finished questions are not rolled out again


def test_verdicts_on_other_trajectories_and_incomplete_rows_are_refused(tmp_path: Path) -> None:
    evaluated = write_evaluation(tmp_path / "sft", [trajectory("q1", "Ostar")])
    of_another = Verdict("of another", 0, "over", "no", "m", "k")
    write_parquet(tmp_path / "judged" / "verdicts.parquet", [of_another], Verdict)
    judged = {"sft": tmp_path / "judged"}
    with pytest.raises(StoreError, match="verdicts on trajectory of another, which"):
        merge_policies({"sft": evaluated}, tmp_path / "merged", judged=judged)
    (evaluated / "rows.json").write_text('{"split": "test", "seconds": {}}')
    with pytest.raises(StoreError, match=r"rows\.json: no outcomes; rerun evaluate-policy"):
        merge_policies({"sft": evaluated}, tmp_path / "merged")
