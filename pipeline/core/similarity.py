"""Similarity between queries and texts: the protocol, and a lexical measure without a model.

sim(query, text) is the sigmoid of a reranker's raw score (TeaRAG, arXiv 2511.05385, sections 4.2.4
and 4.3.2; `retrieval.rerank.RerankerSimilarity`). The lexical measure is for tests and quick
inspection.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from pipeline.core.text import tokenize

Floats = NDArray[np.floating]


class Similarity(Protocol):
    """sim(query, text) as a probability."""

    def matrix(self, queries: Sequence[str], texts: Sequence[str]) -> Floats:
        """Probabilities [q, t] in [0, 1]."""
        ...

    def pairs(self, pairs: Sequence[tuple[str, str]]) -> Floats:
        """Probabilities [n] in [0, 1] of (query, text) pairs."""
        ...


class Lexical:
    """sim(g, t) = |words(g) ∩ words(t)| / |words(g)|, 0 for an empty g (`core.text.tokenize`)."""

    def matrix(self, queries: Sequence[str], texts: Sequence[str]) -> Floats:
        """Similarities [q, t] in [0, 1]; not symmetric."""
        texts_T = [set(tokenize(text)) for text in texts]
        return np.array(
            [[_overlap(set(tokenize(query)), text) for text in texts_T] for query in queries]
        ).reshape(len(queries), len(texts))

    def pairs(self, pairs: Sequence[tuple[str, str]]) -> Floats:
        """Similarities [n] in [0, 1]."""
        return np.array(
            [_overlap(set(tokenize(query)), set(tokenize(text))) for query, text in pairs]
        )


def _overlap(query: set[str], text: set[str]) -> float:
    return len(query & text) / len(query) if query else 0.0
