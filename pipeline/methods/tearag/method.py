"""The parts of TeaRAG (arXiv 2511.05385); trajectories are paired by eq. 14."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pipeline.config.policy import TeaRagReward
from pipeline.core.similarity import Similarity
from pipeline.methods.base import Method, Scorer
from pipeline.methods.tearag.cold_start import build_step
from pipeline.methods.tearag.evidence_match import has_evidence
from pipeline.methods.tearag.reward import PAPER, WEIGHTED, TeaRagRewards, combined, score
from pipeline.pairs.candidates import CandidateTerms, number


def knowledge_scorer(similarity: Similarity, settings: TeaRagReward = PAPER) -> Scorer:
    """The scorer that matches evidence by ``similarity``; without ``settings`` as in the paper."""
    return lambda trajectories, verdicts: score(trajectories, similarity, settings)


def by_outcome_and_process(terms: Mapping[str, Any]) -> CandidateTerms | None:
    """``format``, ``outcome`` and ``process`` as they are; None where one is missing.

    Raises InputError for a term that is not a finite number.
    """
    if not {"format", "outcome", "process"} <= terms.keys():
        return None
    return {
        "format": number(terms, "format"),
        "outcome": number(terms, "outcome"),
        "process": number(terms, "process"),
        "evidenced": has_evidence(terms),
    }


METHOD = Method(
    scorer=lambda settings, inputs: knowledge_scorer(inputs.similarity(), settings.tearag),
    terms=TeaRagRewards,
    candidate_terms=by_outcome_and_process,
    selection="as in TeaRAG\n(arXiv 2511.05385, eq. 14)",
    build_step=build_step,
    weights=WEIGHTED,
    combined=lambda terms, hop, settings: {**terms, **combined(terms, hop, settings.tearag)},
    control={"pairs.terms": "outcome-format"},
    record_needs="evidence",
)
