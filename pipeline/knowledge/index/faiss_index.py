"""Nearest-neighbor search by inner product with FAISS.

Finds the candidate chunks and entities of TeaRAG (arXiv 2511.05385), 4.2.3. Input: normalized
vectors. Output: rows of the nearest vectors with their cosines. Kind ``auto`` is exact search
(flat) up to 100,000 vectors, HNSW up to two million, and IVF-PQ above. IVF-PQ codes select eight
candidates per neighbor; their cosines are then computed from the vectors, which stay on disk. The
search effort of HNSW and IVF-PQ is tuned while building by recall@20 against exact search, with 256
of the vectors as queries, themselves excluded: the share of returned neighbors that are at least as
near as the exact twentieth neighbor. FAISS returns row -1 where it finds too few neighbors; these
rows are removed, because -1 would index the last row.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pipeline.core.errors import DependencyError, StoreError
from pipeline.knowledge.index import ivf_pq
from pipeline.knowledge.index.kinds import Kind, resolve_kind

SearchResult = tuple[NDArray[np.int64], NDArray[np.float32]]  # rows and cosines, best first

_HNSW_LINKS = 32  # per vector
_HNSW_BUILD = 200  # efConstruction
_PROBES = (16, 32, 64, 128, 256, 512)  # efforts of IVF-PQ: cells that a search reads
_CANDIDATES = (32, 64, 128, 256, 512)  # efforts of HNSW: efSearch
_PQ_CANDIDATES = 8  # candidates by code for each neighbor
_ADD = 65_536  # vectors added at once
DECIMALS = 6  # of cosines: batching changes them by less


@dataclass(eq=False)
class VectorIndex:
    """A FAISS index over vectors; `build` or `load` it.

    ``vectors_ND`` are the vectors of a compressed index and may be memory-mapped. ``on_gpu`` says
    that ``index`` searches on GPUs. ``about`` describes the index: its kind, sizes and measured
    recall.
    """

    index: Any
    vectors_ND: NDArray[np.float32] | None = None
    about: dict[str, int | float | str] = field(default_factory=dict)
    on_gpu: bool = False

    def __len__(self) -> int:
        return int(self.index.ntotal)

    @classmethod
    def build(
        cls,
        vectors_ND: NDArray[np.float32],
        kind: Kind = "auto",
        keep: ivf_pq.Keep = ivf_pq.keep_nothing,
    ) -> VectorIndex:
        """Build an index over vectors [N, D], which may be memory-mapped and are added in blocks.

        With ``keep`` the build of a compressed index continues where an earlier one was interrupted
        (`ivf_pq`).

        The search effort of an approximate index is tuned to 95 % recall of 20 neighbors
        (`index.faiss_index`). Raises ConfigError when the kind does not fit the number of vectors.
        """
        import faiss

        count, dimension = vectors_ND.shape
        kind = resolve_kind(kind, count)
        if kind == "flat":
            index: Any = faiss.IndexFlatIP(dimension)
        elif kind == "hnsw":
            index = faiss.IndexHNSWFlat(dimension, _HNSW_LINKS, faiss.METRIC_INNER_PRODUCT)
            index.hnsw.efConstruction = _HNSW_BUILD
        else:
            index = ivf_pq.build_ivf_pq(vectors_ND, keep)
        for start in range(int(index.ntotal), count, _ADD):
            index.add(np.ascontiguousarray(vectors_ND[start : start + _ADD]))
        built = cls(index, vectors_ND if kind == "ivf-pq" else None, {"kind": kind})
        if kind != "flat" and count > 1:
            built._tune(vectors_ND)
        return built

    def _tune(self, vectors_ND: NDArray[np.float32]) -> None:
        index = self.index
        if self.about["kind"] == "hnsw":
            name, efforts, target = "candidates", list(_CANDIDATES), index.hnsw
            self.about["links"] = _HNSW_LINKS
        else:
            self.about |= {"cells": int(index.nlist), "code_bytes": int(index.pq.code_size)}
            efforts = [probes for probes in _PROBES if probes < index.nlist] or [int(index.nlist)]
            name, target = "probes", index
        field = "efSearch" if name == "candidates" else "nprobe"
        effort, recall = least_effort(
            recall_probe(vectors_ND),
            self.search,
            efforts,
            lambda value: setattr(target, field, value),
        )
        self.about |= {name: effort, f"recall_at_{NEIGHBORS}": recall}

    def save(self, path: Path) -> None:
        """Write the index to a file."""
        import faiss

        faiss.write_index(self.index, str(path))

    @classmethod
    def load(cls, path: Path, vectors: Path, *, gpu: bool = False) -> VectorIndex:
        """Load a saved index; with ``gpu`` it is copied to all GPUs, except for HNSW.

        FAISS has HNSW for the CPU only, and the kind of an index is the same on every device.
        ``vectors`` is the file of the vectors, which a compressed index maps into memory. Raises
        StoreError when a file is missing, broken or does not match the other, DependencyError when
        ``gpu`` is set and no GPU is found.
        """
        import faiss

        if not path.is_file():
            raise StoreError(f"{path}: no such index; run the index stage again")
        try:
            index = faiss.read_index(str(path))
        except RuntimeError as error:
            reason = " ".join(str(error).split())[-200:]
            raise StoreError(f"{path}: not a FAISS index ({reason}); run the index stage") from None
        exact_ND = None
        if isinstance(index, faiss.IndexIVFPQ):
            exact_ND = load_vectors(vectors)
            if exact_ND.shape != (index.ntotal, index.d):
                raise StoreError(
                    f"{vectors}: {exact_ND.shape} vectors, but {path.name} is over "
                    f"({index.ntotal}, {index.d}); run the index stage again"
                )
        on_gpu = gpu and not isinstance(index, faiss.IndexHNSW)
        if gpu and not on_gpu:
            print(f"{path.name}: HNSW, which FAISS has for the CPU only, is searched there")
        return cls(_on_gpus(faiss, index) if on_gpu else index, exact_ND, on_gpu=on_gpu)

    def search(self, queries_QD: NDArray[np.float32], k: int) -> list[SearchResult]:
        """At most k neighbors of each query [Q, D], best first, ties by row.

        On a CPU each query is searched alone, since FAISS uses other kernels for 20 queries and
        more. Cosines are rounded to 6 decimals, so that a ranking on a GPU hardly depends on how
        queries are batched.
        """
        if not len(queries_QD) or not len(self):
            empty: SearchResult = (np.zeros(0, dtype=np.int64), np.zeros(0, dtype=np.float32))
            return [empty] * len(queries_QD)
        num_candidates = k if self.vectors_ND is None else k * _PQ_CANDIDATES
        queries_QD = np.ascontiguousarray(queries_QD)
        size = len(queries_QD) if self.on_gpu else 1
        found = [
            self.index.search(queries_QD[start : start + size], min(num_candidates, len(self)))
            for start in range(0, len(queries_QD), size)
        ]
        scores_QK, rows_QK = (np.concatenate(part) for part in zip(*found, strict=True))
        results: list[SearchResult] = []
        for query_D, scores, rows in zip(queries_QD, scores_QK, rows_QK, strict=True):
            valid = rows >= 0
            rows, scores = rows[valid], scores[valid]
            if self.vectors_ND is not None:
                scores = self.vectors_ND[rows] @ query_D
            scores = np.round(scores, DECIMALS)
            order = np.lexsort((rows, -scores))[:k]
            results.append((rows[order], scores[order]))
        return results


def load_vectors(path: Path) -> NDArray[np.float32]:
    """The vectors [N, D] that the index stage stored, memory-mapped.

    Raises StoreError when the file is missing or broken.
    """
    try:
        vectors_ND: NDArray[np.float32] = np.load(path, mmap_mode="r")
    except (OSError, ValueError) as error:
        raise StoreError(
            f"{path}: not an array of vectors ({error}); run the index stage again"
        ) from None
    return vectors_ND


def _on_gpus(faiss: Any, index: Any) -> Any:
    if not hasattr(faiss, "StandardGpuResources"):
        raise DependencyError(
            "index.gpu is true, but this FAISS is built for the CPU; make setup-gpu, or install "
            "faiss-gpu in its place, or set it to false"
        )
    if not faiss.get_num_gpus():
        raise DependencyError("index.gpu is true, but FAISS sees no GPU; set it to false")
    options = faiss.GpuMultipleClonerOptions()
    # In single precision, lookup tables of codes over 48 bytes exceed the shared memory of a block.
    options.useFloat16 = isinstance(index, faiss.IndexIVFPQ)
    try:
        return faiss.index_cpu_to_all_gpus(index, co=options)
    except RuntimeError as error:
        reason = " ".join(str(error).split())[-200:]
        raise DependencyError(
            f"index.gpu is true, but FAISS cannot copy the index to a GPU ({reason}); set it to "
            "false"
        ) from None


NEIGHBORS = 20  # the candidates of semantic retrieval (TeaRAG 4.2.3)
TARGET_RECALL = 0.95
_QUERIES = 256
_BLOCK = 65_536  # vectors compared at once
_TOLERANCE = 2e-6  # two ways of computing a cosine differ by less

Vectors = NDArray[np.float32]
Search = Callable[[Vectors, int], Sequence[tuple[NDArray[np.int64], NDArray[np.float32]]]]


@dataclass(frozen=True)
class RecallProbe:
    """Query vectors drawn from a table, and the cosine of their exact k-th neighbor."""

    rows_Q: NDArray[np.int64]  # rows of the queries in the table
    query_QD: Vectors
    kth_Q: NDArray[np.float32]  # cosine of the k-th nearest other vector
    k: int

    def recall(self, search: Search) -> float:
        """The share of the k exact neighbors of each query that ``search`` returns, in [0, 1]."""
        hits = 0
        results = search(self.query_QD, self.k + 1)
        for row, kth, (rows, cosines) in zip(self.rows_Q, self.kth_Q, results, strict=True):
            near = (rows != row) & (cosines >= kth - _TOLERANCE)
            hits += min(int(near.sum()), self.k)
        return hits / (self.k * len(self.rows_Q))


def recall_probe(vectors_ND: Vectors) -> RecallProbe:
    """Queries drawn from the vectors [N, D], N > 1, with their exact neighbors."""
    count = len(vectors_ND)
    k = min(NEIGHBORS, count - 1)
    rng = np.random.default_rng(0)
    rows_Q = np.sort(rng.choice(count, min(_QUERIES, count), replace=False))
    query_QD = np.ascontiguousarray(vectors_ND[rows_Q])
    best_QK = np.full((len(rows_Q), k), -np.inf, dtype=np.float32)
    for start in range(0, count, _BLOCK):
        block_BD = np.asarray(vectors_ND[start : start + _BLOCK])
        cosine_QB = query_QD @ block_BD.T
        in_block = (rows_Q >= start) & (rows_Q < start + len(block_BD))
        cosine_QB[in_block, rows_Q[in_block] - start] = -np.inf  # a query is not its own neighbor
        both = np.concatenate([best_QK, cosine_QB], axis=1)
        best_QK = -np.partition(-both, k - 1, axis=1)[:, :k]
    return RecallProbe(rows_Q, query_QD, best_QK.min(axis=1), k)


def least_effort(
    probe: RecallProbe, search: Search, efforts: Sequence[int], apply: Callable[[int], None]
) -> tuple[int, float]:
    """The first effort that reaches `TARGET_RECALL`, else the last one, and its recall.

    ``apply`` sets an effort on the index, which keeps the returned one.
    """
    effort, recall = efforts[0], 0.0
    for effort in efforts:
        apply(effort)
        recall = probe.recall(search)
        if recall >= TARGET_RECALL:
            break
    return effort, round(recall, 4)
