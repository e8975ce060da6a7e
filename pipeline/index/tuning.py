"""How hard an approximate index must search, measured against exact search.

Purpose: the recall that a compressed or linked index gives on its own vectors, and the least effort
for which it is good enough; both depend on the data as much as on their number. Input: the vectors
and an index over them. Output: recall@20 of 256 of the vectors as queries, themselves left out: the
share of found neighbours that are as near as the twentieth nearest of all. Exact search reads the
vectors once, in blocks.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

NEIGHBOURS = 20  # as many as semantic retrieval recalls (TeaRAG 4.2.3)
ENOUGH = 0.95
_QUERIES = 256
_BLOCK = 65_536
_SAME = 2e-6  # cosines of one pair, rounded, in two ways of computing them

Vectors = NDArray[np.float32]
Search = Callable[[Vectors, int], Sequence[tuple[NDArray[np.int64], NDArray[np.float32]]]]


@dataclass(frozen=True)
class Probe:
    """Some vectors of a table as queries, and how near their k-th exact neighbour is."""

    rows_Q: NDArray[np.int64]
    query_QD: Vectors
    kth_Q: NDArray[np.float32]
    k: int

    def recall(self, search: Search) -> float:
        """Of k neighbours each, the share that an index finds."""
        found = 0
        answers = search(self.query_QD, self.k + 1)
        for row, kth, (rows, cosines) in zip(self.rows_Q, self.kth_Q, answers, strict=True):
            near = (rows != row) & (cosines >= kth - _SAME)
            found += min(int(near.sum()), self.k)
        return found / (self.k * len(self.rows_Q))


def probe(vectors_ND: Vectors) -> Probe:
    """Queries drawn from the vectors [N, D], N > 1, with their exact neighbours."""
    count = len(vectors_ND)
    k = min(NEIGHBOURS, count - 1)
    rng = np.random.default_rng(0)
    rows_Q = np.sort(rng.choice(count, min(_QUERIES, count), replace=False))
    query_QD = np.ascontiguousarray(vectors_ND[rows_Q])
    best_QK = np.full((len(rows_Q), k), -np.inf, dtype=np.float32)
    for start in range(0, count, _BLOCK):
        block_BD = np.asarray(vectors_ND[start : start + _BLOCK])
        cosine_QB = query_QD @ block_BD.T
        own = (rows_Q >= start) & (rows_Q < start + len(block_BD))
        cosine_QB[own, rows_Q[own] - start] = -np.inf
        both = np.concatenate([best_QK, cosine_QB], axis=1)
        best_QK = -np.partition(-both, k - 1, axis=1)[:, :k]
    return Probe(rows_Q, query_QD, best_QK.min(axis=1), k)


def least_effort(
    probed: Probe, search: Search, efforts: Sequence[int], apply: Callable[[int], None]
) -> tuple[int, float]:
    """The first of the efforts whose recall is enough, else the last, and its recall.

    ``apply`` sets an effort on the index; it stays at the one that is returned.
    """
    effort, recall = efforts[0], 0.0
    for effort in efforts:
        apply(effort)
        recall = probed.recall(search)
        if recall >= ENOUGH:
            break
    return effort, round(recall, 4)
