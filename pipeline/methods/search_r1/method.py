"""The parts of Search-R1 (arXiv 2503.09516); trajectories are paired by a margin of its reward."""

from __future__ import annotations

from pipeline.methods.base import Method
from pipeline.methods.search_r1.cold_start import build_step, turns
from pipeline.methods.search_r1.reward import SearchR1Rewards, combined, score
from pipeline.pairs.candidates import by_total

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
