"""Supervised steps for the HiPRAG grammar (arXiv 2510.07794; the paper has no cold start).

Input: hops with gold evidence, as for TeaRAG's supervised trajectories (TeaRAG 4.3.1). Output: a
`Step` that searches and gets the gold paragraph, or a `Step` that answers from parametric
knowledge, for hops that the base model knows (`known_facts`).
"""

from __future__ import annotations

import random
from collections.abc import Sequence

from pipeline.core.records import Step
from pipeline.sft_data.steps import Fact, Hop, context_chunks, passages
from pipeline.sft_data.templates import CONCLUSIONS, FROM_MEMORY, TO_SEARCH, reasoning, summary


def build_step(
    hop: Hop,
    supporting: Sequence[Fact],
    rng: random.Random,
    *,
    from_memory: bool = False,
    others: Sequence[Hop] = (),
    other_paragraph: float = 0.0,
) -> Step | None:
    """The step of a hop, or None; ``hop.fault`` then holds the reason.

    The context holds passages only. ``subquery`` repeats the hop's question because the split into
    train and test compares subqueries; the grammar does not render it.

    Args:
        hop: the hop.
        supporting: its supporting triplets.
        rng: source of randomness.
        from_memory: build a step without a search.
        others: the question's other hops.
        other_paragraph: probability that the context also holds another hop's gold paragraph.
    """
    if not supporting:
        hop.fault = "no supporting triplet"
        return None
    facts = [fact.text for fact in supporting]
    step = Step(
        subquery=hop.question,
        reasoning=reasoning(FROM_MEMORY if from_memory else TO_SEARCH, hop.question, rng),
        conclusion=summary(facts, hop.answer, rng, CONCLUSIONS),
    )
    if not from_memory:
        step.search = hop.question
        step.context = passages(context_chunks(hop, others, other_paragraph, rng))
    return step
