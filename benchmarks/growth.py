"""Row ``growth``: how building, memory and latency grow with the corpus.

Work: generated corpora of n chunks and ten times as many triplets. Built are the graph's tables, as
the graph stage builds them, entities numbered and all, each in a process of its own; and a
compressed FAISS index (the kind that ``auto`` picks beyond two million vectors) over random vectors
of 64 dimensions, one a chunk; both in CPU seconds. Asked are batches of 64 subqueries: triplets one
hop from five entities, and the 20 nearest chunks.

Each line compares a size with the one before: how many times more a query costs, against the ratio
of the logarithms; how many times more a triplet costs to build, against 1. Searches of all sizes
take turns.
"""

from __future__ import annotations

import itertools
import math
import sys
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from time import process_time
from typing import Any

import numpy as np
from numpy.typing import NDArray

from benchmarks import store
from benchmarks.timing import Row, alternate, per
from pipeline.index.faiss_index import VectorIndex
from pipeline.retrieval.neighbours import Neighbours
from pipeline.retrieval.tables import Columns

TRIPLETS_PER_CHUNK = 10
DIMENSIONS = 64
RECALL = 20
_LEAST_INDEXED = 10_000  # fewer vectors cannot train the quantiser
_QUERIES = 1_024
_ADDED = 65_536

LINEAR = "about 1 (linear)"
BELOW_LOG = "< {log:.2f} (log)"


@dataclass(frozen=True)
class Size:
    """What was built for one corpus; ``index`` is None where there are too few chunks."""

    chunks: int
    neighbours: Neighbours
    queries: store.Queries
    built: dict[str, float]
    store_bytes: int
    index: VectorIndex | None
    index_seconds: float

    @property
    def triplets(self) -> int:
        return self.chunks * TRIPLETS_PER_CHUNK


Figures = Callable[[Size], list[float]]


def rows(chunks: Sequence[int], repeats: int, plot: Path | None = None) -> list[Row]:
    """Growth from each size to the next; ``plot`` names a picture to draw.

    Raises AssertionError when there are fewer than two sizes to compare.
    """
    assert len(chunks) > 1, "growth needs two sizes to compare"
    with tempfile.TemporaryDirectory(prefix="growth-") as name:
        sizes = [_build(Path(name) / str(count), count) for count in sorted(chunks)]
        one_hop = alternate({str(s.chunks): partial(_ask_graph, s) for s in sizes}, repeats)
        rng = np.random.default_rng(1)
        asked_QD = _vectors(rng, _QUERIES)
        nearest = alternate(
            {
                str(size.chunks): partial(_ask_index, size.index, asked_QD)
                for size in sizes
                if size.index is not None
            },
            repeats,
        )
    found = []
    for small, large in itertools.pairwise(sizes):
        found += _compared(small, large, one_hop, nearest)
    if plot is not None:
        _draw(plot, sizes, one_hop, nearest)
    return found


def _build(folder: Path, chunks: int) -> Size:
    built = store.build_in_process(folder, chunks * TRIPLETS_PER_CHUNK, numbered=False)
    neighbours = Neighbours.load(folder / "neighbours")
    columns = Columns(folder / "triplets.arrow", ("id", "head", "relation", "tail", "chunk_id"))
    rng = np.random.default_rng(0)
    index, seconds = None, 0.0
    if chunks >= _LEAST_INDEXED:
        vectors_ND = _vectors(rng, chunks)
        start = process_time()
        index = VectorIndex.build(vectors_ND, "ivf-pq")
        seconds = process_time() - start
    # A build takes minutes at a million chunks: say that it goes on.
    print(f"growth: {chunks:,} chunks, {built}, index {seconds:.1f} CPU s", file=sys.stderr)
    queries = rng.integers(0, neighbours.entities, (_QUERIES, store.QUERY)).tolist()
    return Size(
        chunks, neighbours, queries, built, columns.nbytes + neighbours.nbytes, index, seconds
    )


def _compared(
    small: Size,
    large: Size,
    one_hop: dict[str, list[float]],
    nearest: dict[str, list[float]],
) -> list[Row]:
    def row(work: str, count: Callable[[Size], int], figure: Figures, unit: str, goal: str) -> Row:
        log = math.log(count(large)) / math.log(count(small))
        return Row(
            "growth",
            f"{work}, {count(large):,}",
            f"{count(small):,}",
            figure(large),
            figure(small),
            unit,
            goal.format(log=log),
            ours_over_peer=True,
            details={"large": large.built, "small": small.built},
        )

    def triplets(size: Size) -> int:
        return size.triplets

    def chunks(size: Size) -> int:
        return size.chunks

    def graph_memory(size: Size) -> list[float]:
        return [(size.built["peak_mib"] - size.built["baseline_mib"]) * 2**20 / size.triplets]

    found = [
        row(
            "one hop, triplets",
            triplets,
            lambda size: per(one_hop[str(size.chunks)], _QUERIES),
            "µs per query",
            BELOW_LOG,
        ),
        row(
            "graph stage, triplets",
            triplets,
            lambda size: [size.built["build_cpu_seconds"] / size.triplets * 1e6],
            "CPU µs per triplet",
            LINEAR,
        ),
        row("graph stage's peak, triplets", triplets, graph_memory, "bytes per triplet", "≤ 1"),
        row(
            "columns and neighbours, triplets",
            triplets,
            lambda size: [size.store_bytes / size.triplets],
            "bytes per triplet",
            LINEAR,
        ),
    ]
    if small.index is not None and large.index is not None:
        found += [
            row(
                "nearest chunks, chunks",
                chunks,
                lambda size: per(nearest[str(size.chunks)], _QUERIES),
                "µs per query",
                BELOW_LOG,
            ),
            row(
                "index, chunks",
                chunks,
                lambda size: [size.index_seconds / size.chunks * 1e6],
                "CPU µs per vector",
                LINEAR,
            ),
        ]
    return found


def _ask_graph(size: Size) -> object:
    return [
        size.neighbours.of(size.queries[start : start + store.BATCH])
        for start in range(0, len(size.queries), store.BATCH)
    ]


def _ask_index(index: VectorIndex, asked_QD: NDArray[np.float32]) -> object:
    return [
        index.search(asked_QD[start : start + store.BATCH], RECALL)
        for start in range(0, len(asked_QD), store.BATCH)
    ]


def _vectors(rng: np.random.Generator, count: int) -> NDArray[np.float32]:
    vectors_ND = np.empty((count, DIMENSIONS), dtype=np.float32)
    for start in range(0, count, _ADDED):
        part = rng.standard_normal((min(_ADDED, count - start), DIMENSIONS), dtype=np.float32)
        vectors_ND[start : start + len(part)] = part / np.linalg.norm(part, axis=1, keepdims=True)
    return vectors_ND


def _draw(
    path: Path,
    sizes: Sequence[Size],
    one_hop: dict[str, list[float]],
    nearest: dict[str, list[float]],
) -> None:
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(1, 3, figsize=(12, 3.6), constrained_layout=True)
    triplets = [size.triplets for size in sizes]

    def line(axis: Any, counts: Sequence[float], values: Sequence[float], label: str) -> None:
        axis.plot(counts, values, marker="o", label=label)

    line(axes[0], triplets, [size.built["build_cpu_seconds"] for size in sizes], "graph stage")
    indexed = [size for size in sizes if size.index is not None]
    line(axes[0], [s.triplets for s in indexed], [s.index_seconds for s in indexed], "index")
    mib = [size.built["peak_mib"] - size.built["baseline_mib"] for size in sizes]
    line(axes[1], triplets, mib, "graph stage, peak")
    line(axes[1], triplets, [size.store_bytes / 2**20 for size in sizes], "columns and neighbours")
    for seconds, label in ((one_hop, "one hop"), (nearest, "nearest chunks")):
        medians = [float(np.median(per(seconds[key], _QUERIES))) for key in seconds]
        line(axes[2], [int(key) * TRIPLETS_PER_CHUNK for key in seconds], medians, label)
    titles = ("building, CPU s", "memory, MiB", "latency, µs per query")
    for axis, title in zip(axes, titles, strict=True):
        axis.set(title=title, xlabel="triplets (ten a chunk)", xscale="log", yscale="log")
        axis.grid(True, which="major", alpha=0.3)
        axis.legend()
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, metadata={"Date": None})
    pyplot.close(figure)
