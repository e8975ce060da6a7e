"""Supervised turns for the ProGraph-R1 grammar (3.3), whose paper has no cold start.

Graph-R1's paper has none either. Input: hops with golden evidence, as for TeaRAG's supervised
trajectories (TeaRAG 4.3.1), with facts of the kind that the configured retrieval returns. Output: a
`Step` per hop with its query and simulated knowledge, and the turns that render them. A turn's
thought states the previous turn's finding before the next query or the answer.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import replace

from pipeline.core.records import Step
from pipeline.training.sft_data.steps import (
    Fact,
    Hop,
    StepOptions,
    context_chunks,
    insert_facts,
    passages,
)
from pipeline.training.sft_data.templates import CONCLUSIONS, TO_SEARCH, reasoning, summary


def build_step(
    hop: Hop, supporting: Sequence[Fact], rng: random.Random, options: StepOptions
) -> Step | None:
    """The step of a hop, or None; ``hop.fault`` then holds the reason.

    The context holds the supporting facts and may hold further facts of the same paragraphs.
    ``subquery`` repeats the hop's question because the split into train and test compares
    subqueries; the grammar renders ``query``.
    """
    if not supporting:
        hop.fault = "no supporting fact"
        return None
    chunks = context_chunks(hop, supporting, options, rng)
    context = passages(chunks) if "chunk" in options.kinds else []
    if {"triplet", "hyperedge"} & set(options.kinds):
        chunk_ids = {chunk.id for chunk in chunks}
        facts = {fact.id: fact for any_hop in (hop, *options.others) for fact in any_hop.facts}
        candidates = [fact for fact in facts.values() if fact.chunk_id in chunk_ids]
        insert_facts(context, supporting, candidates, options.other_facts, rng)
    statements = [fact.text.removesuffix(".") for fact in supporting]
    return Step(
        subquery=hop.question,
        reasoning=reasoning(TO_SEARCH, hop.question, rng),
        query=hop.question,
        context=context,
        summary=summary(statements, hop.answer, rng, CONCLUSIONS),
    )


def turns(steps: Sequence[Step]) -> list[Step]:
    """The turns of a trajectory: one per step, then a turn that thinks before the answer."""
    findings = ["", *(step.summary for step in steps)]
    return [
        replace(step, think=f"{finding} {step.reasoning}".strip())
        for finding, step in zip(findings, steps, strict=False)
    ] + [Step(think=findings[-1])]
