"""Triplets one hop from entities, as a compressed sparse row table.

Purpose: the candidate set of graph retrieval's second stage (TeaRAG, arXiv 2511.05385, 4.2.3).
Input: the entity number of every triplet's head and tail. Output: rows of all triplets that touch a
set of entities. Memory: one 8-byte row number per end of a triplet and one offset per entity.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

Rows = NDArray[np.int64]


class Neighbours:
    """``of(entities)``: which triplets have one of them as head or tail."""

    def __init__(self, head_T: Rows, tail_T: Rows, entities: int) -> None:
        """``head_T`` and ``tail_T`` [T] are entity numbers below ``entities``."""
        rows_T = np.arange(len(head_T), dtype=np.int64)
        loop_T = head_T == tail_T  # named once, although both ends are the entity
        ends = np.concatenate([head_T, tail_T[~loop_T]])
        rows = np.concatenate([rows_T, rows_T[~loop_T]])
        self._rows = rows[np.argsort(ends, kind="stable")]
        self._offsets = np.zeros(entities + 1, dtype=np.int64)
        np.cumsum(np.bincount(ends, minlength=entities), out=self._offsets[1:])

    def of(self, entities: Sequence[int]) -> Rows:
        """Rows of triplets, ascending, each once."""
        if not len(entities):
            return np.zeros(0, dtype=np.int64)
        parts = [self._rows[self._offsets[e] : self._offsets[e + 1]] for e in entities]
        return np.unique(np.concatenate(parts))
