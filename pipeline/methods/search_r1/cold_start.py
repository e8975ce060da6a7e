"""Supervised turns in Search-R1's grammar (arXiv 2503.09516; the paper has no cold start).

Input: hops, as for TeaRAG's supervised trajectories (TeaRAG, arXiv 2511.05385, 4.3.1). Output: a
`Step` per hop with its query and a simulated context of passages, and the turns that such steps
make. The reasoning after an information block states what the passages say and what to search for
next.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import replace

from pipeline.core.records import Step
from pipeline.methods.prograph import cold_start
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
