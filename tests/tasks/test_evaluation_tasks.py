"""Which stages a run has, and which of them a setting of evaluation changes. Nothing runs here."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from pipeline.core.errors import ConfigError, InputError
from pipeline.engine.stage import StageTask
from tests.tasks import declared

pytestmark = pytest.mark.usefixtures("elsewhere")


def stages(*overrides: str, config: str = "embedded") -> dict[str, StageTask]:
    return declared.by_label("shards=1", *overrides, config=config)


def changed(*overrides: str) -> set[str]:
    return declared.changed(*overrides, common=("shards=1", "rounds=1"))


EVALUATIONS = {"evaluate-policy-0", "evaluate-policy-1", "evaluate", "report"}


def test_what_evaluation_overrides_changes_evaluations_and_no_training_stage() -> None:
    assert changed("evaluation.retrieval.top_k=3") == EVALUATIONS
    assert changed("evaluation.sampling.max_steps=2") == EVALUATIONS
    assert changed("evaluation.retrieval.alpha=0.3") == EVALUATIONS


def test_cover_exact_match_decides_evaluations_and_hiprags_reward_and_the_average_the_report() -> (
    None
):
    assert changed("evaluation.cem=substring") == EVALUATIONS
    before, after = (
        stages("rounds=1", f"evaluation.cem={cem}", config="embedded-hiprag")["score-1"]
        for cem in ("words", "substring")
    )
    assert before.key.fingerprint != after.key.fingerprint
    assert changed("evaluation.average=all-questions") == {"report"}


def test_the_last_policy_alone_is_evaluated_on_the_final_split() -> None:
    splits = ("rounds=2", "evaluation.split=validation", "evaluation.final_split=test")
    run = stages(*splits)
    assert list(run["evaluate"].inputs) == ["sft", "round-1", "round-2", "final-round-2"]
    last = run["evaluate"].inputs["final-round-2"]
    assert last.label == "evaluate-policy-2-test"
    assert last.inputs["questions"] is run["questions-test"]
    assert last.inputs["policy"] is run["train-2"]
    assert {run[f"evaluate-policy-{n}"].settings.evaluation.split for n in range(3)} == {
        "validation"
    }
    assert (
        run["evaluate-policy-2"].key.fingerprint
        == stages(*splits[:2])["evaluate-policy-2"].key.fingerprint
    )
    with pytest.raises(ConfigError, match="final_split and split are both test"):
        stages("evaluation.final_split=test")


def test_candidates_are_chosen_before_the_graph_and_passages_are_embedded_once() -> None:
    new = changed("graph.scope=candidates")
    assert {"passage-index", "candidates", "graph", "index", "sft-data", "sample-1"} <= new
    assert not {"corpus", "questions-sft", "questions-sampling", "coverage"} & new
    scope = ("rounds=1", "graph.scope=candidates", "graph.candidates=5")
    more = declared.changed("graph.candidates=6", common=scope)
    assert ("candidates" in more, "passage-index" in more) == (True, False)
    run = stages("graph.scope=candidates")
    assert "passages" in run["index"].inputs
    assert run["sft-data"].inputs["graph"] is run["graph"]
    assert run["explore-test"].inputs["index"] is run["index"]
    assert run["explore-test"].inputs["policy"] is run["sft"]
    for label in ("sample-1", "sample-3", "evaluate-policy-0", "report"):
        assert run[label].inputs["index"] is run["index-explored"]
    with pytest.raises(ConfigError, match="service serves one index"):
        stages("graph.scope=candidates", "retrieval.service=http://localhost:8765")


def test_an_index_that_only_evaluation_needs_is_part_of_the_run() -> None:
    new = changed("evaluation.retrieval.variant=prograph")
    assert new == {"hypergraph", "hyper-index", *EVALUATIONS}


def test_a_run_that_searches_nothing_builds_no_index() -> None:
    knowledge = {"corpus", "graph", "index"}
    assert not knowledge & set(stages(config="zero-shot"))
    without = stages("rounds=1", "evaluation.retrieval.variant=none")
    assert not knowledge & set(without["evaluate-policy-1"].inputs)
    assert knowledge < set(without["sample-1"].inputs)


def test_a_run_from_the_base_model_has_no_stage_of_the_cold_start() -> None:
    from_base = stages("rounds=1", "start=base")
    assert {"sft", "sft-data"} & from_base.keys() == set()
    assert from_base["sample-1"].inputs["policy"] is from_base["train-1"].inputs["policy"]
    assert from_base["sample-1"].inputs["policy"].stage == "start"
    assert list(from_base["evaluate"].inputs) == ["base", "round-1"]


def test_the_content_of_an_adapter_decides_and_not_its_place(tmp_path: Path) -> None:
    for name, rank in (("one", 8), ("two", 8), ("three", 4)):
        (tmp_path / name).mkdir()
        (tmp_path / name / "adapter_config.json").write_text(json.dumps({"r": rank}))
        (tmp_path / name / "adapter_model.safetensors").write_bytes(b"tensors")
    keys = [stages(f"start={name}")["start"].key for name in ("one", "two", "three")]
    assert keys[0] == keys[1] != keys[2]


def test_an_adapter_that_does_not_exist_is_refused_before_anything_runs() -> None:
    with pytest.raises(InputError, match="start names missing, and there is no such directory"):
        _ = stages("start=missing")["start"].key
