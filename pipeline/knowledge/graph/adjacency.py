"""Triplets one hop from entities: a CSR (compressed sparse row) table on disk, memory-mapped.

This is the candidate set of the second stage of graph retrieval (TeaRAG, arXiv 2511.05385, 4.2.3).
Input: the entity numbers of every triplet's head and tail. Output: the rows of all triplets that
touch a set of entities. A table is two files: ``rows.npy`` holds the triplets of entity 0, then of
entity 1, and so on, each entity's in ascending order; ``offsets.npy`` holds where each entity's
rows begin. Numbers take 4 bytes while they fit, so T triplets between E entities take 8 T + 4 E
bytes, which all processes of a host share.

A hypergraph has two such tables (`graph.tables`): the hyperedges of each entity, and the entities
of each hyperedge.

A table is built in two passes over the input, block by block: the first counts the rows of each
key, the second writes every row into the next free place of its key. Memory: 8 E bytes and one
block; the rows are written through the mapping.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from pipeline.core.errors import StoreError

Rows = NDArray[np.integer]
KeyedRows = tuple[Rows, Rows]  # keys and their rows, two arrays of equal length
OFFSETS, ROWS = "offsets.npy", "rows.npy"
_FIRST = np.ones(1, dtype=bool)


class Adjacency:
    """The rows that belong to each key: triplets of an entity, or entities of a hyperedge."""

    def __init__(self, offsets_E: NDArray[np.integer], rows_N: NDArray[np.integer]) -> None:
        """``rows_N[offsets_E[e] : offsets_E[e + 1]]`` are the rows of key e, ascending."""
        self._offsets = offsets_E
        self._rows = rows_N
        # Memory views serve single queries: indexing and slicing arrays takes two to three times as
        # long.
        self._offset_view = memoryview(offsets_E)  # type: ignore[arg-type]
        self._row_view = memoryview(rows_N)  # type: ignore[arg-type]

    @classmethod
    def load(cls, folder: Path) -> Adjacency:
        """Memory-map the table that `write_csr` wrote.

        Raises StoreError when a file is missing, unreadable or inconsistent with the other.
        """
        try:
            offsets_E, rows_N = (np.load(folder / name, mmap_mode="r") for name in (OFFSETS, ROWS))
        except (OSError, ValueError) as error:
            raise StoreError(
                f"{folder}: not an adjacency table ({error}); run the graph stage again"
            ) from None
        if len(offsets_E) == 0 or offsets_E[-1] != len(rows_N):
            raise StoreError(
                f"{folder}: {OFFSETS} does not match {ROWS}; run the graph stage again"
            )
        # As plain arrays: every index into a memmap object costs a microsecond of bookkeeping.
        return cls(np.asarray(offsets_E), np.asarray(rows_N))

    @property
    def num_keys(self) -> int:
        """Number of keys."""
        return len(self._offsets) - 1

    @property
    def nbytes(self) -> int:
        """Bytes of both arrays."""
        return int(self._offsets.nbytes + self._rows.nbytes)

    def union(self, queries: Sequence[Sequence[int]]) -> list[Rows]:
        """For each query, a list of keys: the distinct rows of any of them, ascending."""
        if len(queries) == 1 and queries[0]:  # takes a fifth of the time of the general case
            return [self._union_of_one(queries[0])]
        entity_N = np.array([entity for query in queries for entity in query], dtype=np.int64)
        row_M, length_N = self.gather(entity_N)
        query_N = np.repeat(np.arange(len(queries)), [len(query) for query in queries])
        # (query, row) as one number sorts and compares faster than two.
        width = int(row_M.max(initial=0)) + 1
        key_M = np.repeat(query_N, length_N) * width + row_M
        key_M.sort()
        key_M = key_M[np.diff(key_M, prepend=-1) > 0]
        bounds = np.searchsorted(key_M, np.arange(len(queries) + 1) * width).tolist()
        return [
            key_M[low:high] - number * width
            for number, (low, high) in enumerate(itertools.pairwise(bounds))
        ]

    def gather(self, key_N: Rows) -> tuple[Rows, Rows]:
        """The rows [M] of the keys, concatenated in their order, and the number of rows [N] of
        each."""
        start_N = self._offsets[key_N].astype(np.int64)
        length_N = self._offsets[key_N + 1].astype(np.int64) - start_N
        # Positions of all rows at once: 0, 1, 2, ... shifted so that each key's begin at its start.
        shift_N = start_N - (np.cumsum(length_N) - length_N)
        row_M = self._rows[np.arange(length_N.sum()) + np.repeat(shift_N, length_N)]
        return row_M.astype(np.int64), length_N

    def degrees(self, key_N: Rows) -> Rows:
        """The number of rows [N] of each key."""
        degree_N: Rows = self._offsets[key_N + 1].astype(np.int64) - self._offsets[key_N]
        return degree_N

    def _union_of_one(self, query: Sequence[int]) -> Rows:
        offsets, rows = self._offset_view, self._row_view
        joined = bytearray().join([rows[offsets[key] : offsets[key + 1]] for key in query])
        row_M: Rows = np.frombuffer(joined, self._rows.dtype)
        row_M.sort()
        repeated_M = row_M[1:] == row_M[:-1]
        if np.count_nonzero(repeated_M):  # a microsecond faster than any()
            row_M = row_M[np.concatenate((_FIRST, ~repeated_M))]
        return row_M


def write_csr(folder: Path, keyed: Callable[[], Iterable[KeyedRows]], keys: int) -> None:
    """Write the rows of each of ``keys`` keys into ``folder``.

    ``keyed()`` yields blocks of (keys, rows), every pair once, with the rows of a key ascending. It
    is called twice and must yield the same blocks.
    """
    folder.mkdir(parents=True, exist_ok=True)
    # free_E[e + 1] counts key e; summed up, free_E[e] is where key e begins.
    free_E = np.zeros(keys + 1, dtype=np.int64)
    rows = 0
    for key_M, row_M in keyed():
        touched, count = np.unique(key_M, return_counts=True)
        free_E[touched + 1] += count
        rows = max(rows, int(row_M.max(initial=0)) + 1)
    np.cumsum(free_E, out=free_E)
    total = int(free_E[-1])
    np.save(folder / OFFSETS, free_E.astype(_smallest_dtype(total)))
    if not total:  # an empty file cannot be mapped for writing
        np.save(folder / ROWS, np.zeros(0, dtype=np.uint32))
        return
    rows_N = np.lib.format.open_memmap(  # type: ignore[no-untyped-call]
        folder / ROWS, mode="w+", dtype=_smallest_dtype(rows), shape=(total,)
    )
    for key_M, row_M in keyed():
        order = np.argsort(key_M, kind="stable")
        touched, begin, count = np.unique(key_M[order], return_index=True, return_counts=True)
        place_M = np.repeat(free_E[touched] - begin, count) + np.arange(len(key_M))
        rows_N[place_M] = row_M[order]
        free_E[touched] += count
    rows_N.flush()


def _smallest_dtype(highest: int) -> type[np.uint32] | type[np.int64]:
    return np.uint32 if highest <= np.iinfo(np.uint32).max else np.int64
