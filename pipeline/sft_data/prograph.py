"""Supervised turns for the ProGraph-R1 grammar (3.3), whose paper has no cold start.

Graph-R1's paper has none either. Input: hops with gold evidence, as for TeaRAG's supervised
trajectories (TeaRAG 4.3.1), with facts of the kind that the configured retrieval returns. Output: a
`Step` per hop with its query and simulated knowledge, and the turns that render them. A turn's
thought states the previous turn's finding before the next query or the answer.
"""

from __future__ import annotations

import random
from collections.abc import Collection, Iterator, Sequence
from dataclasses import replace

from pipeline.core.records import Step
from pipeline.sft_data.steps import Fact, Hop, context_chunks, insert_facts, passages
from pipeline.sft_data.templates import CONCLUSIONS, TO_SEARCH, reasoning, summary


def build_step(
    hop: Hop,
    supporting: Sequence[Fact],
    rng: random.Random,
    *,
    kinds: Collection[str],
    others: Sequence[Hop] = (),
    other_paragraph: float = 0.0,
    other_facts: float = 0.0,
) -> Step | None:
    """The step of a hop, or None; ``hop.fault`` then holds the reason.

    The context holds the supporting facts and may hold further facts of the same paragraphs.
    ``subquery`` repeats the hop's question because the split into train and test compares
    subqueries; the grammar renders ``query``.

    Args:
        hop: the hop.
        supporting: its supporting facts.
        rng: source of randomness.
        kinds: kinds of `ContextItem` that the configured retrieval returns.
        others: the question's other hops.
        other_paragraph: probability that the context also holds another hop's gold paragraph.
        other_facts: probability of each further fact of the context's paragraphs.
    """
    if not supporting:
        hop.fault = "no supporting fact"
        return None
    chunks = context_chunks(hop, others, other_paragraph, rng)
    context = passages(chunks) if "chunk" in kinds else []
    if {"triplet", "hyperedge"} & set(kinds):
        chunk_ids = {chunk.id for chunk in chunks}
        facts = {fact.id: fact for any_hop in (hop, *others) for fact in any_hop.facts}
        candidates = [fact for fact in facts.values() if fact.chunk_id in chunk_ids]
        insert_facts(context, supporting, candidates, other_facts, rng)
    statements = [fact.text.removesuffix(".") for fact in supporting]
    return Step(
        subquery=hop.question,
        reasoning=reasoning(TO_SEARCH, hop.question, rng),
        query=hop.question,
        context=context,
        summary=summary(statements, hop.answer, rng, CONCLUSIONS),
    )


def turns(steps: Sequence[Step]) -> Iterator[Step]:
    """The turns of a trajectory: one per step, then a turn that thinks before the answer."""
    finding = ""
    for step in steps:
        yield replace(step, think=f"{finding} {step.reasoning}".strip())
        finding = step.summary
    yield Step(think=finding)
