"""One bit per dimension of every vector, for a first choice among very many candidates.

Input: vectors [N, D]. Output: codes that say in which dimensions a vector is above the mean, as
``NAME.signs.npy`` [N, D / 64], with the mean as ``NAME.mean.npy``. Candidates whose codes differ
least from the query's are kept for exact comparison. A hub of a graph ("United States") has a
million triplets: the codes of their vectors take 96 bytes each in place of 3,072 (D = 768).
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pipeline.knowledge.index.embed import Vectors

MANY = 20_000  # with fewer candidates all are compared exactly
_KEPT = 4_096  # candidates that are kept at least
_KEPT_SHARE = 0.01
_BLOCK = 65_536  # rows
_SAMPLE = 100_000  # rows that the mean is of

Rows = NDArray[np.integer[Any]]


class SignCodes:
    """The codes of a table's vectors, memory-mapped."""

    def __init__(self, codes_NW: NDArray[np.uint64], mean_D: NDArray[np.float32]) -> None:
        self._codes_NW, self._mean_D = codes_NW, mean_D

    @classmethod
    def write(cls, vectors_ND: Vectors, folder: Path, name: str) -> None:
        """Write both files, unless the table has so few rows that no candidates are too many."""
        count = len(vectors_ND)
        if count <= MANY:
            return
        step = max(1, count // _SAMPLE)
        mean_D = np.asarray(vectors_ND[::step], dtype=np.float32).mean(0)
        words = -(-len(mean_D) // 64)
        target: Any = np.lib.format.open_memmap(  # type: ignore[no-untyped-call]
            folder / f"{name}.signs.npy", mode="w+", dtype=np.uint64, shape=(count, words)
        )
        for start in range(0, count, _BLOCK):
            block_ND = vectors_ND[start : start + _BLOCK]
            target[start : start + len(block_ND)] = _codes(block_ND > mean_D)
        target.flush()
        np.save(folder / f"{name}.mean.npy", mean_D)

    @classmethod
    def load(cls, folder: Path, name: str) -> SignCodes | None:
        """The codes that `write` wrote; None for a small table."""
        path = folder / f"{name}.signs.npy"
        if not path.is_file():
            return None
        return cls(np.load(path, mmap_mode="r"), np.load(folder / f"{name}.mean.npy"))

    def nearest(self, query_D: NDArray[np.float32], rows: Rows) -> Rows:
        """At most 1 % of ``rows``, or 4,096, whose codes are nearest to the query's, ascending."""
        kept = max(_KEPT, int(_KEPT_SHARE * len(rows)))
        code_W = _codes((query_D > self._mean_D)[None])[0]
        differing_N = np.empty(len(rows), dtype=np.uint16)
        for start in range(0, len(rows), _BLOCK):
            part = rows[start : start + _BLOCK]
            differing_N[start : start + len(part)] = np.bitwise_count(
                self._codes_NW[part] ^ code_W
            ).sum(1, dtype=np.uint16)
        nearest: Rows = np.sort(rows[np.argpartition(differing_N, kept)[:kept]])
        return nearest


def _codes(above_ND: NDArray[np.bool_]) -> NDArray[np.uint64]:
    """Rows of bits as rows of 64-bit words; the last word is filled with zeros."""
    packed_NB = np.packbits(above_ND, axis=1)
    missing = -packed_NB.shape[1] % 8
    return np.pad(packed_NB, ((0, 0), (0, missing))).view(np.uint64)
