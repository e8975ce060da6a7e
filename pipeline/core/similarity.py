"""Similarity between queries and texts: its type, and a lexical measure without a model.

sim(query, text) is the sigmoid of a reranker's raw score (TeaRAG, arXiv 2511.05385, sections 4.2.4
and 4.3.2; `retrieval.rerank.reranker_similarity`). The lexical measure is for tests and quick
inspection.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from pipeline.core.text import tokenize

Similarity: TypeAlias = Callable[[Sequence[tuple[str, str]]], NDArray[np.float64]]
"""Probabilities [n] in [0, 1] of n (query, text) pairs."""


def lexical(pairs: Sequence[tuple[str, str]]) -> NDArray[np.float64]:
    """sim(g, t) = |words(g) ∩ words(t)| / |words(g)|, 0 for an empty g (`core.text.tokenize`)."""
    return np.array([_overlap(set(tokenize(query)), set(tokenize(text))) for query, text in pairs])


def _overlap(query: set[str], text: set[str]) -> float:
    return len(query & text) / len(query) if query else 0.0
