"""HiPRAG (arXiv 2510.07794): a reward for right search decisions; pairs by a margin of it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from pipeline.config.policy import HiPragReward, Rewards
from pipeline.core.records import Trajectory
from pipeline.core.verdicts import Verdict
from pipeline.methods.base import Method, ScoreInputs, Scorer
from pipeline.methods.hiprag.cold_start import build_step
from pipeline.methods.hiprag.reward import HiPragRewards, combined, score
from pipeline.pairs.candidates import by_total


def decision_scorer(weights: HiPragReward) -> Scorer:
    """The scorer of eq. 1; without verdicts it needs ``weights.process`` to be 0."""

    def scorer(
        trajectories: Sequence[Trajectory], verdicts: Sequence[Sequence[Verdict]] | None
    ) -> list[HiPragRewards]:
        if verdicts is None:
            return score(
                trajectories,
                [[None] * len(trajectory.steps) for trajectory in trajectories],
                weights,
            )
        return score(
            trajectories, [[verdict.verdict for verdict in steps] for steps in verdicts], weights
        )

    return scorer


def _combined(terms: Mapping[str, Any], _: str, settings: Rewards) -> Mapping[str, Any]:
    answer, format, steps = terms["answer"], terms["format"], terms["steps"]
    return {**terms, **combined(answer, format, steps, settings.hiprag)}


def _scorer(settings: Rewards, inputs: ScoreInputs) -> Scorer:
    return decision_scorer(settings.hiprag)


METHOD = Method(
    scorer=_scorer,
    terms=HiPragRewards,
    candidate_terms=by_total,
    selection="by a margin of\nHiPRAG's reward (arXiv 2510.07794, eq. 1)",
    reward_titles={
        "answer": "Answer covered (A)",
        "format": "Format (F)",
        "n": "Judged steps (N)",
        "n_corr": "Needed decisions (N_corr)",
        "total": "Reward (HiPRAG eq. 1)",
    },
    build_step=build_step,
    weights=("format", "process", "penalise"),
    combined=_combined,
    control={"rewards.hiprag.process": 0},
    record_needs="verdicts",
)
