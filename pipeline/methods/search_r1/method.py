"""Search-R1 (arXiv 2503.09516): an outcome reward; trajectories are paired by a margin of it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pipeline.config.policy import Rewards
from pipeline.methods.base import Method, ScoreInputs, Scorer
from pipeline.methods.search_r1.cold_start import build_step, turns
from pipeline.methods.search_r1.reward import SearchR1Rewards, combined, score
from pipeline.pairs.candidates import by_total


def _combined(terms: Mapping[str, Any], _: str, settings: Rewards) -> Mapping[str, Any]:
    return combined(terms["answer"], terms["format"], settings.search_r1.format)


def _scorer(settings: Rewards, inputs: ScoreInputs) -> Scorer:
    return lambda trajectories, verdicts: score(trajectories, settings.search_r1)


METHOD = Method(
    scorer=_scorer,
    terms=SearchR1Rewards,
    candidate_terms=by_total,
    selection="by a margin of\nSearch-R1's outcome reward (arXiv 2503.09516, "
    "with the format term of 2505.15117)",
    reward_titles={
        "answer": "Answer (exact match or F1)",
        "format": "Format",
        "total": "Reward (Search-R1)",
    },
    build_step=build_step,
    weights=("format",),
    combined=_combined,
    turns=turns,
)
