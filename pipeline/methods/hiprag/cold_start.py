"""Supervised steps for the HiPRAG grammar (arXiv 2510.07794; the paper has no cold start).

Input: hops with golden evidence, as for TeaRAG's supervised trajectories (TeaRAG 4.3.1). Output: a
`Step` that searches and gets the gold paragraph, or a `Step` that answers from parametric
knowledge, for hops that the base model knows (`known_facts`).
"""

from __future__ import annotations

import random
from collections.abc import Sequence

from pipeline.core.records import Step
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
