"""Nearest neighbours by inner product over FAISS.

Purpose: recall of chunks and entities (TeaRAG, arXiv 2511.05385, 4.2.3). Input: normalised vectors.
Output: rows of the best neighbours with their cosines. ``auto`` is exact up to 100,000 vectors,
a graph (HNSW) up to two million, compressed cells (IVF-PQ) beyond. FAISS answers -1 where it finds
too few neighbours, and -1 would index the last row: those never leave this module.
"""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from pipeline.errors import ConfigError, DependencyError, StoreError

Kind = Literal["flat", "ivf-pq", "hnsw", "auto"]
Found = tuple[NDArray[np.int64], NDArray[np.float32]]  # rows and cosines, best first

_FLAT_UP_TO = 100_000
_HNSW_UP_TO = 2_000_000
_HNSW_LINKS = 32
_HNSW_BUILD, _HNSW_SEARCH = 200, 128
_PER_CELL = 39  # FAISS warns below so many training vectors per cell
_LEAST_FOR_PQ = 256  # a product quantiser of 8 bits has so many centroids
_PROBES = 64
_TRAIN_AT_MOST = 1_000_000
_ADD = 65_536
DECIMALS = 6  # cosines of one pair in other batches differ below this


class VectorIndex:
    """A FAISS index for searching; build it, or load what was saved."""

    def __init__(self, index: Any) -> None:
        self._index = index

    def __len__(self) -> int:
        return int(self._index.ntotal)

    @classmethod
    def build(
        cls, vectors_ND: NDArray[np.float32], kind: Kind = "auto", *, gpu: bool = False
    ) -> VectorIndex:
        """An index over vectors [N, D], which may be memory-mapped; they are added in blocks.

        Raises ConfigError when the kind does not fit the number of vectors or the GPU.
        """
        import faiss

        count, dimension = vectors_ND.shape
        kind = chosen(kind, count, gpu=gpu)
        if kind == "flat":
            index: Any = faiss.IndexFlatIP(dimension)
        elif kind == "hnsw":
            index = faiss.IndexHNSWFlat(dimension, _HNSW_LINKS, faiss.METRIC_INNER_PRODUCT)
            index.hnsw.efConstruction = _HNSW_BUILD
            index.hnsw.efSearch = _HNSW_SEARCH
        else:
            index = _trained_cells(faiss, vectors_ND)
        for start in range(0, count, _ADD):
            index.add(np.ascontiguousarray(vectors_ND[start : start + _ADD]))
        return cls(index)

    def save(self, path: Path) -> None:
        """Write the index to a file."""
        import faiss

        faiss.write_index(self._index, str(path))

    @classmethod
    def load(cls, path: Path, *, gpu: bool = False) -> VectorIndex:
        """Read a saved index; with ``gpu`` spread over all GPUs.

        Raises StoreError when the file is missing or no index, DependencyError without a GPU.
        """
        import faiss

        if not path.is_file():
            raise StoreError(f"{path}: no such index; run the index stage again")
        try:
            index = faiss.read_index(str(path))
        except RuntimeError as error:
            reason = " ".join(str(error).split())[-200:]
            raise StoreError(f"{path}: not a FAISS index ({reason}); run the index stage") from None
        return cls(_on_gpus(faiss, index) if gpu else index)

    def search(self, queries_QD: NDArray[np.float32], k: int) -> list[Found]:
        """Up to k neighbours of each query, best first, ties by row; fewer where there are fewer.

        Cosines are rounded to 6 decimals, so that a ranking does not depend on how queries were
        batched.
        """
        if not len(queries_QD) or not len(self):
            empty: Found = (np.zeros(0, dtype=np.int64), np.zeros(0, dtype=np.float32))
            return [empty] * len(queries_QD)
        scores_QK, rows_QK = self._index.search(np.ascontiguousarray(queries_QD), min(k, len(self)))
        found: list[Found] = []
        for scores, rows in zip(scores_QK, rows_QK, strict=True):
            real = rows >= 0
            rows, scores = rows[real], np.round(scores[real], DECIMALS)
            order = np.lexsort((rows, -scores))
            found.append((rows[order], scores[order]))
        return found


def chosen(kind: Kind, count: int, *, gpu: bool = False) -> Literal["flat", "ivf-pq", "hnsw"]:
    """The kind that ``auto`` means for so many vectors; others are checked and returned."""
    if kind == "auto":
        if count <= (_HNSW_UP_TO if gpu else _FLAT_UP_TO):
            return "flat"  # FAISS has no HNSW on a GPU
        return "hnsw" if count <= _HNSW_UP_TO else "ivf-pq"
    if kind == "hnsw" and gpu:
        raise ConfigError("index.faiss is hnsw, which FAISS has not on a GPU; use flat or ivf-pq")
    if kind == "ivf-pq" and count < _LEAST_FOR_PQ:
        raise ConfigError(
            f"index.faiss is ivf-pq, which needs at least {_LEAST_FOR_PQ} vectors to train on; "
            f"there are {count}; use flat or auto"
        )
    return kind


def _trained_cells(faiss: Any, vectors_ND: NDArray[np.float32]) -> Any:
    count, dimension = vectors_ND.shape
    cells = max(1, min(int(4 * math.sqrt(count)), count // _PER_CELL))
    codes = next(
        size for size in (dimension // 8, dimension // 4, 1) if size and not dimension % size
    )
    index = faiss.index_factory(dimension, f"IVF{cells},PQ{codes}x8", faiss.METRIC_INNER_PRODUCT)
    rows = np.arange(count)
    if count > _TRAIN_AT_MOST:
        rows = np.sort(np.random.default_rng(0).choice(count, _TRAIN_AT_MOST, replace=False))
    index.train(np.ascontiguousarray(vectors_ND[rows]))
    index.nprobe = min(cells, _PROBES)
    return index


def _on_gpus(faiss: Any, index: Any) -> Any:
    if not hasattr(faiss, "StandardGpuResources"):
        raise DependencyError(
            "index.gpu is true, but this FAISS is built for the CPU; pip install 'steep[gpu]' "
            "(faiss-gpu), or set it to false"
        )
    if not faiss.get_num_gpus():
        raise DependencyError("index.gpu is true, but FAISS sees no GPU; set it to false")
    return faiss.index_cpu_to_all_gpus(index)
