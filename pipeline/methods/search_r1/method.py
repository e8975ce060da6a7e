"""The parts of Search-R1 (arXiv 2503.09516); trajectories are paired by a margin of its reward.

The paper has no cold start. Its supervised steps are those of hops, as for TeaRAG's (arXiv
2511.05385, 4.3.1), each with its query and a simulated context of passages. The reasoning after an
information block states what the passages say and what to search for next.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import replace

from pipeline.core.records import Step
from pipeline.methods.base import Method
from pipeline.methods.prograph import cold_start
from pipeline.methods.search_r1.reward import SearchR1Rewards, combined, score
from pipeline.pairs.candidates import by_total
from pipeline.training.sft_data.steps import Fact, Hop, StepOptions, gold_sentence


def build_step(
    hop: Hop, supporting: Sequence[Fact], rng: random.Random, options: StepOptions
) -> Step | None:
    """The step, or None with ``hop.fault`` set to the reason why there is none.

    ``think`` is the reasoning before the search and ``summary`` the reasoning after it. The context
    holds passages only, so a passage's sentence will do without a supporting triplet.
    """
    if not (supporting := supporting or gold_sentence(hop)):
        return None
    step = cold_start.build_step(hop, supporting, rng, replace(options, kinds=("chunk",)))
    return step and replace(step, query=None, think=step.reasoning, reasoning="")


def turns(steps: Sequence[Step]) -> list[Step]:
    """The steps, with the reasoning before each further search moved into the summary before it."""
    following = [step.think for step in steps[1:]] + [""]
    return [
        replace(step, summary=f"{step.summary} {think}".strip())
        for step, think in zip(steps, following, strict=True)
    ]


METHOD = Method(
    scorer=lambda settings, _: lambda trajectories, _: score(trajectories, settings.search_r1),
    terms=SearchR1Rewards,
    candidate_terms=by_total,
    selection="by a margin of\nSearch-R1's outcome reward (arXiv 2503.09516, "
    "with the format term of 2505.15117)",
    build_step=build_step,
    weights=("format",),
    combined=lambda terms, _, settings: combined(
        terms["answer"], terms["format"], settings.search_r1.format
    ),
    turns=turns,
)
