"""The parts of HiPRAG (arXiv 2510.07794); trajectories are paired by a margin of its reward.

The paper has no cold start. The supervised steps are of hops with golden evidence, as for TeaRAG
(4.3.1): a `Step` that searches and gets the gold paragraph, or one that answers from parametric
knowledge, for hops that the base model knows (`known_facts`).
"""

from __future__ import annotations

import random
from collections.abc import Sequence

from pipeline.config.policy import HiPragReward
from pipeline.core.answer_metrics import CoverMatch
from pipeline.core.records import Step, Trajectory
from pipeline.core.verdicts import Ruling, Verdict
from pipeline.methods.base import Method, Scorer
from pipeline.methods.hiprag.reward import HiPragRewards, combined, score
from pipeline.pairs.candidates import by_total
from pipeline.training.sft_data.steps import (
    Fact,
    Hop,
    StepOptions,
    context_chunks,
    gold_sentence,
    passages,
)
from pipeline.training.sft_data.templates import (
    CONCLUSIONS,
    FROM_MEMORY,
    TO_SEARCH,
    reasoning,
    summary,
)


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


def build_step(
    hop: Hop, supporting: Sequence[Fact], rng: random.Random, options: StepOptions
) -> Step | None:
    """The step of a hop, or None; ``hop.fault`` then holds the reason.

    The context holds passages only, so a passage's sentence will do without a supporting triplet.
    ``subquery`` repeats the hop's question because the split into train and test compares
    subqueries; the grammar does not render it.
    """
    if not (supporting := supporting or gold_sentence(hop)):
        return None
    facts = [fact.text for fact in supporting]
    step = Step(
        subquery=hop.question,
        reasoning=reasoning(FROM_MEMORY if options.from_memory else TO_SEARCH, hop.question, rng),
        conclusion=summary(facts, hop.answer, rng, CONCLUSIONS),
    )
    if not options.from_memory:
        step.search = hop.question
        step.context = passages(context_chunks(hop, supporting, options, rng))
    return step


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
