"""Row ``index``: the kinds of FAISS index against exact search.

Work: the 20 nearest of n generated vectors for batches of 64 queries that are not among them. Told
are microseconds per query against flat, and in the JSON the recall of the flat index's neighbours,
what building took, and the bytes that a process holds. A million vectors take HNSW some half an
hour of one core.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from functools import partial
from pathlib import Path

import numpy as np

from benchmarks import vectors
from benchmarks.timing import Row, alternate, per
from pipeline.index.faiss_index import Kind, VectorIndex

RECALL = 20  # neighbours
BATCH = 64
LEAST_COMPRESSED = 10_000  # fewer vectors cannot train the quantiser
_HNSW_UP_TO = 1_000_000
_QUERIES = 256


def rows(sizes: Sequence[int], repeats: int, folder: Path) -> list[Row]:
    """Each kind that fits each size, against flat."""
    return [row for size in sizes for row in _one(folder / str(size), size, repeats)]


def _one(folder: Path, size: int, repeats: int) -> list[Row]:
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
    asked_QD = vectors.queries(size, _QUERIES)
    exact = [set(found.tolist()) for found, _ in indexes["flat"].search(asked_QD, RECALL)]
    seconds = alternate(
        {str(kind): partial(ask, index, asked_QD) for kind, index in indexes.items()}, repeats
    )
    found = []
    for kind in kinds[1:]:
        answers = [rows.tolist() for rows, _ in indexes[kind].search(asked_QD, RECALL)]
        recall = np.mean([len(one & set(rows)) for one, rows in zip(exact, answers, strict=True)])
        bytes_each = built[kind]["file_bytes"] / size
        found.append(
            Row(
                "index",
                f"{size:,} vectors, {kind}: recall {recall / min(RECALL, size):.3f}, "
                f"{bytes_each:,.0f} bytes each, built in {built[kind]['cpu_seconds']:,.0f} CPU s",
                "flat",
                per(seconds[str(kind)], _QUERIES),
                per(seconds["flat"], _QUERIES),
                "µs per query",
                details={"recall_at_20": float(recall / RECALL), "built": built[kind]},
            )
        )
    return found


def ask(index: VectorIndex, asked_QD: vectors.Vectors) -> object:
    """All queries in batches, as retrieval asks."""
    return [
        index.search(asked_QD[start : start + BATCH], RECALL)
        for start in range(0, len(asked_QD), BATCH)
    ]
