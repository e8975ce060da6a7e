"""The parts of HiPRAG (arXiv 2510.07794); trajectories are paired by a margin of its reward."""

from __future__ import annotations

from collections.abc import Sequence

from pipeline.config.policy import HiPragReward
from pipeline.core.answer_metrics import CoverMatch
from pipeline.core.records import Trajectory
from pipeline.core.verdicts import Ruling, Verdict
from pipeline.methods.base import Method, Scorer
from pipeline.methods.hiprag.cold_start import build_step
from pipeline.methods.hiprag.reward import HiPragRewards, combined, score
from pipeline.pairs.candidates import by_total


def decision_scorer(weights: HiPragReward, cem: CoverMatch = "words") -> Scorer:
    """The scorer of eq. 1; without verdicts it needs ``weights.process`` to be 0."""

    def scorer(
        trajectories: Sequence[Trajectory], verdicts: Sequence[Sequence[Verdict]] | None
    ) -> list[HiPragRewards]:
        rulings: list[list[Ruling | None]] = [[None] * len(one.steps) for one in trajectories]
        if verdicts is not None:
            rulings = [[one.verdict for one in steps] for steps in verdicts]
        return score(trajectories, rulings, weights, cem)

    return scorer


METHOD = Method(
    scorer=lambda settings, inputs: decision_scorer(settings.hiprag, inputs.cem),
    terms=HiPragRewards,
    candidate_terms=by_total,
    selection="by a margin of\nHiPRAG's reward (arXiv 2510.07794, eq. 1)",
    build_step=build_step,
    weights=("format", "process", "penalise", "unknown"),
    combined=lambda terms, _, settings: combined(
        terms["answer"], terms["format"], terms["steps"], settings.hiprag
    ),
    control={"rewards.hiprag.process": 0},
    record_needs="verdicts",
)
