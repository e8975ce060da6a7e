"""Row ``index``: the kinds of FAISS index against exact search.

Work: the 20 nearest of n generated vectors for batches of 64 new queries. The table shows
microseconds per query against the flat index; the JSON also holds the recall of the flat index's
neighbors, the cost of building, and the size in memory. Building HNSW over a million vectors takes
about half an hour on one core.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from functools import partial
from pathlib import Path

import numpy as np

from benchmarks import vectors
from benchmarks.timing import Row, alternate, per
from pipeline.knowledge.index.faiss_index import VectorIndex
from pipeline.knowledge.index.kinds import Kind

NEIGHBORS = 20  # retrieved per query
BATCH = 64
LEAST_COMPRESSED = 10_000  # minimum number of vectors for training the quantizer
_HNSW_UP_TO = 1_000_000
_QUERIES = 256


def rows(sizes: Sequence[int], repeats: int, folder: Path) -> list[Row]:
    """Every kind of index that suits each size, against the flat index."""
    return [row for size in sizes for row in _size_rows(folder / str(size), size, repeats)]


def _size_rows(folder: Path, size: int, repeats: int) -> list[Row]:
    kinds: list[Kind] = ["flat"]
    if size <= _HNSW_UP_TO:
        kinds.append("hnsw")
    if size >= LEAST_COMPRESSED:
        kinds.append("ivf-pq")
    built = {}
    for kind in kinds:
        built[kind] = vectors.build_in_process(folder, size, kind)
        print(f"index: {size:,} vectors, {kind}, {built[kind]}", file=sys.stderr)
    indexes = {kind: vectors.load(folder, kind) for kind in kinds}
    query_QD = vectors.queries(size, _QUERIES)
    exact = [set(nearest.tolist()) for nearest, _ in indexes["flat"].search(query_QD, NEIGHBORS)]
    seconds = alternate(
        {str(kind): partial(search_in_batches, index, query_QD) for kind, index in indexes.items()},
        repeats,
    )
    result = []
    for kind in kinds[1:]:
        answers = [rows.tolist() for rows, _ in indexes[kind].search(query_QD, NEIGHBORS)]
        matches = [len(nearest & set(rows)) for nearest, rows in zip(exact, answers, strict=True)]
        recall = float(np.mean(matches)) / min(NEIGHBORS, size)
        bytes_each = built[kind]["file_bytes"] / size
        result.append(
            Row(
                "index",
                f"{size:,} vectors, {kind}: recall {recall:.3f}, "
                f"{bytes_each:,.0f} bytes each, built in {built[kind]['cpu_seconds']:,.0f} CPU s",
                "flat",
                per(seconds[str(kind)], _QUERIES),
                per(seconds["flat"], _QUERIES),
                "µs per query",
                details={"recall_at_20": recall, "built": built[kind]},
            )
        )
    return result


def search_in_batches(index: VectorIndex, query_QD: vectors.Vectors) -> object:
    """Search for all queries [Q, D] in batches, as retrieval does."""
    return [
        index.search(query_QD[start : start + BATCH], NEIGHBORS)
        for start in range(0, len(query_QD), BATCH)
    ]
