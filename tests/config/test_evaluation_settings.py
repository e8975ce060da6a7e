"""Settings of evaluation that differ from training's, and runs without a cold start."""

from __future__ import annotations

from pathlib import Path

import pytest

from pipeline.config import load

EMBEDDED = Path(__file__).resolve().parents[2] / "configs/embedded.yaml"


def test_evaluation_overrides_only_what_is_given_and_training_keeps_its_settings() -> None:
    own = ("evaluation.retrieval={variant: semantic, top_k: 3}", "evaluation.sampling.max_steps=2")
    config, plain = load(EMBEDDED, own), load(EMBEDDED)
    evaluated = config.for_evaluation()
    assert (evaluated.retrieval.variant, evaluated.retrieval.top_k) == ("semantic", 3)
    assert evaluated.retrieval.reranker == plain.retrieval.reranker
    assert (evaluated.sampling.max_steps, evaluated.sampling.top_p) == (2, 1.0)
    assert (config.retrieval, config.sampling) == (plain.retrieval, plain.sampling)
    assert plain.for_evaluation() is plain


@pytest.mark.parametrize("name", ["tearag", "hiprag", "prograph", "search-r1"])
def test_every_method_can_be_evaluated_with_one_retrieval_in_the_prompt(name: str) -> None:
    file = EMBEDDED.with_name("embedded.yaml" if name == "tearag" else f"embedded-{name}.yaml")
    config = load(file, ("evaluation.retrieval.rounds=prompt", "start=base"))
    assert config.for_evaluation().retrieval.rounds == "prompt"
    assert config.grammar == name


def test_policy_0_is_called_by_what_the_run_starts_from() -> None:
    starts = ("sft", "base", "/models/adapter")
    names = [load(EMBEDDED, (f"start={start}",)).policy_name(0) for start in starts]
    assert names == ["sft", "base", "start"]
