"""Evidence matching: similarity of golden evidence with the texts of a trajectory.

TeaRAG (arXiv 2511.05385) eq. 9 to 11. For evidence g_t and one kind of text (subquery, context,
summary), m_t is the largest similarity of g_t with the texts of that kind in all steps. The context
texts are all retrieved items. Input: the evidence and steps of trajectories, and a similarity
model. Output: m_t of every piece of evidence. The similarities of a batch of trajectories are
requested in one call, and each (evidence, text) pair once, because samples of one question share
most of both.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from typing import Any, TypedDict, cast

import numpy as np

from pipeline.core.errors import RetrievalError
from pipeline.core.records import ContextItem, Step
from pipeline.core.similarity import Similarity


class EvidenceMatches(TypedDict):
    """m_t in [0, 1] of every piece of golden evidence, in order, by kind of text (eq. 9-11)."""

    subquery: list[float]
    context: list[float]
    summary: list[float]


def has_evidence(terms: Mapping[str, Any]) -> bool:
    """Whether reward terms come from golden evidence; also if they do not say (``memory``)."""
    memory = terms.get("memory")
    return not isinstance(memory, Mapping) or any(memory.values())


def item_text(item: ContextItem) -> str:
    """The text of an item that evidence is compared with, after its title if it has one."""
    return f"{item.title} {item.text}" if item.title else item.text


def match_evidence(
    trajectories: Sequence[tuple[Sequence[str], Sequence[Step]]], similarity: Similarity
) -> list[EvidenceMatches]:
    """The matches of every trajectory, given as (evidence, steps), in order.

    Raises RetrievalError when the similarity model returns a value outside [0, 1]: the output of a
    broken model must not become a reward.
    """
    compared = [(evidence, _texts(steps)) for evidence, steps in trajectories]
    pairs = dict.fromkeys(
        pair
        for evidence, kinds in compared
        for texts in kinds.values()
        for pair in itertools.product(evidence, texts)
    )
    similarities = dict(zip(pairs, _probabilities(list(pairs), similarity), strict=True))

    def matches(evidence: Sequence[str], texts: Sequence[str]) -> list[float]:
        return [max((similarities[gold, text] for text in texts), default=0.0) for gold in evidence]

    found = [
        {kind: matches(evidence, texts) for kind, texts in kinds.items()}
        for evidence, kinds in compared
    ]
    return cast(list[EvidenceMatches], found)


def _texts(steps: Sequence[Step]) -> dict[str, list[str]]:
    """Subqueries, retrieved items and summaries of all steps."""
    return {
        "subquery": [step.subquery for step in steps],
        "context": [item_text(item) for step in steps for item in step.context],
        "summary": [step.summary for step in steps],
    }


def _probabilities(pairs: list[tuple[str, str]], similarity: Similarity) -> list[float]:
    values = np.asarray(similarity(pairs), dtype=float)
    outside = np.flatnonzero(~((values >= 0) & (values <= 1)))  # catches NaN as well
    if outside.size:
        raise RetrievalError(
            f"the similarity of {pairs[outside[0]]!r} is {values[outside[0]]}; expected a "
            "probability in [0, 1]; check rewards.reranker"
        )
    return [float(value) for value in values]
