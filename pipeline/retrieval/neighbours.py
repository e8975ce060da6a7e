"""Triplets one hop from entities: a compressed sparse row table on disk, memory-mapped.

Purpose: the candidate set of graph retrieval's second stage (TeaRAG, arXiv 2511.05385, 4.2.3).
Input: the entity numbers of every triplet's head and tail. Output: rows of all triplets that touch
a set of entities. Two files: ``rows.npy``, the triplets of entity 0, then of entity 1, ..., each
entity's ascending; ``offsets.npy``, where each entity's begin. Numbers take 4 bytes while they fit,
so T triplets between E entities take 8 T + 4 E bytes, which all processes of a host share.

The table is built in two counting passes over the ends, block by block: the first counts each
entity's triplets, the second puts every row where its entity's next free place is. Memory: 8 E
bytes and one block; the rows are written through the mapping.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from pipeline.errors import StoreError

Rows = NDArray[np.integer]
Ends = NDArray[np.integer]  # [n, 2]: entity numbers of head and tail
OFFSETS, ROWS = "offsets.npy", "rows.npy"
_FIRST = np.ones(1, dtype=bool)


class Neighbours:
    """``of(queries)``: which triplets have one of a query's entities as head or tail."""

    def __init__(self, offsets_E: NDArray[np.integer], rows_N: NDArray[np.integer]) -> None:
        """``rows_N[offsets_E[e] : offsets_E[e + 1]]`` are the triplets of entity e, ascending."""
        self._offsets = offsets_E
        self._rows = rows_N
        # Gives plain numbers: one of an array costs three times as much to read and to slice by.
        self._begin = memoryview(offsets_E)  # type: ignore[arg-type]

    @classmethod
    def load(cls, folder: Path) -> Neighbours:
        """Map what `write_neighbours` wrote.

        Raises StoreError when a file is missing or broken.
        """
        try:
            offsets_E, rows_N = (np.load(folder / name, mmap_mode="r") for name in (OFFSETS, ROWS))
        except (OSError, ValueError) as error:
            raise StoreError(
                f"{folder}: not a table of neighbours ({error}); run the graph stage again"
            ) from None
        if len(offsets_E) == 0 or offsets_E[-1] != len(rows_N):
            raise StoreError(
                f"{folder}: {OFFSETS} and {ROWS} do not belong together; run the graph stage again"
            )
        # As plain arrays: every index into a memmap object costs a microsecond of bookkeeping.
        return cls(np.asarray(offsets_E), np.asarray(rows_N))

    @property
    def entities(self) -> int:
        return len(self._offsets) - 1

    @property
    def nbytes(self) -> int:
        """Bytes of both files."""
        return int(self._offsets.nbytes + self._rows.nbytes)

    def of(self, queries: Sequence[Sequence[int]]) -> list[Rows]:
        """For each query, a list of entities: rows of triplets, ascending, each once."""
        if len(queries) == 1 and queries[0]:  # a fifth of the time that the general way takes
            return [self._of_one(queries[0])]
        entity_N = np.array([entity for query in queries for entity in query], dtype=np.int64)
        start_N = self._offsets[entity_N].astype(np.int64)
        length_N = self._offsets[entity_N + 1].astype(np.int64) - start_N
        query_N = np.repeat(np.arange(len(queries)), [len(query) for query in queries])
        # Places of all rows at once: 0, 1, 2, ... shifted so that each entity's begin at its start.
        shift_N = start_N - (np.cumsum(length_N) - length_N)
        row_M = self._rows[np.arange(length_N.sum()) + np.repeat(shift_N, length_N)]
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

    def _of_one(self, query: Sequence[int]) -> Rows:
        begin, rows = self._begin, self._rows
        row_M: Rows = np.concatenate([rows[begin[entity] : begin[entity + 1]] for entity in query])
        row_M.sort()
        again_M = row_M[1:] == row_M[:-1]
        if np.count_nonzero(again_M):  # a microsecond less than any()
            row_M = row_M[np.concatenate((_FIRST, ~again_M))]
        return row_M


def write_neighbours(folder: Path, ends: Callable[[], Iterable[Ends]], entities: int) -> None:
    """Write the table of a graph; ``ends()`` gives the ends [n, 2] of all triplets, in blocks.

    It is called twice and must give the same blocks. Entity numbers are below ``entities``.
    """
    folder.mkdir(parents=True, exist_ok=True)
    # free_E[e + 1] counts entity e; summed up, free_E[e] is where entity e begins.
    free_E = np.zeros(entities + 1, dtype=np.int64)
    triplets = 0
    for block in ends():
        touched, count = np.unique(_distinct(block)[0], return_counts=True)
        free_E[touched + 1] += count
        triplets += len(block)
    np.cumsum(free_E, out=free_E)
    total = int(free_E[-1])
    np.save(folder / OFFSETS, free_E.astype(_smallest(total)))
    if not total:  # an empty file cannot be mapped for writing
        np.save(folder / ROWS, np.zeros(0, dtype=np.uint32))
        return
    rows_N = np.lib.format.open_memmap(  # type: ignore[no-untyped-call]
        folder / ROWS, mode="w+", dtype=_smallest(triplets), shape=(total,)
    )
    first = 0
    for block in ends():
        entity_M, row_M = _distinct(block)
        order = np.argsort(entity_M, kind="stable")
        entity_M = entity_M[order]
        touched, begin, count = np.unique(entity_M, return_index=True, return_counts=True)
        place_M = np.repeat(free_E[touched] - begin, count) + np.arange(len(entity_M))
        rows_N[place_M] = row_M[order] + first
        free_E[touched] += count
        first += len(block)
    rows_N.flush()


def _distinct(block: Ends) -> tuple[Rows, Rows]:
    """(entity, row of the block) of every end; a triplet with two equal ends is named once."""
    head, tail = np.asarray(block, dtype=np.int64).T
    rows = np.arange(len(block))
    two = head != tail
    # Row by row, so that a stable sort by entity leaves every entity's rows ascending.
    entity = np.stack([head, tail], axis=1).ravel()
    kept = np.stack([np.ones(len(block), dtype=bool), two], axis=1).ravel()
    return entity[kept], np.repeat(rows, 2)[kept]


def _smallest(highest: int) -> type[np.uint32] | type[np.int64]:
    return np.uint32 if highest <= np.iinfo(np.uint32).max else np.int64
