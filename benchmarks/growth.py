"""Row ``growth``: how building, memory and latency grow with the corpus.

Work: generated corpora of n chunks of 100 words and ten times as many triplets. The build covers
the chunk tables, as the corpus stage writes them; the graph tables, as the graph stage writes them,
including the numbering of entities; and a compressed FAISS index (the kind that ``auto`` selects
above two million vectors) over one generated vector per chunk. Each is built in a separate process
and reported in CPU seconds. Queries are batches of 64 subqueries: triplets one hop from five
entities, and the 20 nearest chunks with their texts. The embedder is left out, as its throughput
does not depend on the corpus.

Each row divides the cost at one size by the cost at the previous size. A query should cost less
than the ratio of the logarithms of both sizes, and building should cost the same per triplet, a
ratio of 1. The searches of all sizes alternate.
"""

from __future__ import annotations

import itertools
import json
import math
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks import store, vectors
from benchmarks.index import LEAST_COMPRESSED, search_in_batches
from benchmarks.measured_process import Measured, cached_figures, run_measured
from benchmarks.timing import Row, alternate, per
from pipeline.core.columns import Columns
from pipeline.knowledge.corpus.chunk import chunk_documents, write_chunks
from pipeline.knowledge.corpus.raw_records import Document
from pipeline.knowledge.graph.adjacency import Adjacency
from pipeline.knowledge.index.faiss_index import VectorIndex

TRIPLETS_PER_CHUNK = 10
_WORDS = 100
_VOCABULARY = 50_000
_QUERIES = 1_024
_DRAWN = 4_096

LINEAR = "about 1 (linear)"
BELOW_LOG = "< {log:.2f} (log)"
Figures = dict[str, Any]


@dataclass(frozen=True)
class Size:
    """The builds of one corpus; ``index`` is None for too few chunks."""

    chunks: int
    corpus: Figures
    graph: Figures
    texts: Columns
    neighbours: Adjacency
    queries: store.Queries
    store_bytes: int
    index: VectorIndex | None
    indexed: Figures | None

    @property
    def triplets(self) -> int:
        return self.chunks * TRIPLETS_PER_CHUNK


Figure = Callable[[Size], list[float]]


def rows(chunks: Sequence[int], repeats: int, folder: Path) -> list[Row]:
    """Growth from each size to the next.

    Finished builds in ``folder`` are reused. Raises AssertionError for fewer than two sizes.
    """
    assert len(chunks) > 1, "growth needs two sizes to compare"
    sizes = [_built(folder / str(count), count) for count in sorted(chunks)]
    one_hop = alternate({str(s.chunks): partial(_search_graph, s) for s in sizes}, repeats)
    nearest = alternate(
        {
            str(size.chunks): partial(
                _search_chunks, size, size.index, vectors.queries(size.chunks, _QUERIES)
            )
            for size in sizes
            if size.index is not None
        },
        repeats,
    )
    result = []
    for small, large in itertools.pairwise(sizes):
        result += _compared(small, large, one_hop, nearest)
    return result


def _built(folder: Path, chunks: int) -> Size:
    folder.mkdir(parents=True, exist_ok=True)
    corpus = cached_figures(
        folder / "corpus.json", lambda: run_measured("benchmarks.growth", folder, chunks)
    )
    graph = cached_figures(
        folder / "graph.json",
        lambda: store.build_in_process(folder, chunks * TRIPLETS_PER_CHUNK, numbered=False),
    )
    index, indexed = None, None
    if chunks >= LEAST_COMPRESSED:
        indexed = vectors.build_in_process(folder, chunks, "ivf-pq")
        index = vectors.load(folder, "ivf-pq")
    # A build takes minutes at a million chunks, so progress is printed.
    print(f"growth: {chunks:,} chunks, {corpus}, {graph}, {indexed}", file=sys.stderr)
    neighbours = Adjacency.load(folder / "neighbours")
    columns = Columns(folder / "triplets.arrow", ("id", "head", "relation", "tail", "chunk_id"))
    texts = Columns(folder / "chunks.arrow", ("id", "title", "text"))
    rng = np.random.default_rng(0)
    return Size(
        chunks,
        corpus,
        graph,
        texts,
        neighbours,
        rng.integers(0, neighbours.num_keys, (_QUERIES, store.QUERY)).tolist(),
        columns.nbytes + neighbours.nbytes,
        index,
        indexed,
    )


def documents(count: int) -> Iterator[Document]:
    """Generated documents of one chunk each; equal counts give equal documents."""
    words = np.array([f"w{number:05x}" for number in range(_VOCABULARY)], dtype=object)
    rng = np.random.default_rng(0)
    for start in range(0, count, _DRAWN):
        drawn = rng.integers(0, _VOCABULARY, (min(_DRAWN, count - start), _WORDS))
        for number, row in enumerate(words[drawn].tolist(), start):
            yield Document(f"Document {number}", " ".join(row), f"d{number}")


def _compared(
    small: Size, large: Size, one_hop: dict[str, list[float]], nearest: dict[str, list[float]]
) -> list[Row]:
    def figure_per(part: str, figure: str, scale: float, count: str) -> Figure:
        return lambda size: [getattr(size, part)[figure] * scale / getattr(size, count)]

    def hops(size: Size) -> list[float]:
        return per(one_hop[str(size.chunks)], _QUERIES)

    def neighbours(size: Size) -> list[float]:
        return per(nearest[str(size.chunks)], _QUERIES)

    def stored(size: Size) -> list[float]:
        return [size.store_bytes / size.triplets]

    triplets, chunks, cpu = "triplets", "chunks", "cpu_seconds"
    writing, building = (figure_per(part, cpu, 1e6, chunks) for part in ("corpus", "indexed"))
    table: list[tuple[str, str, Figure, str, str]] = [
        ("one hop", triplets, hops, "µs per query", BELOW_LOG),
        ("corpus", chunks, writing, "CPU µs per chunk", LINEAR),
        ("graph stage", triplets, figure_per("graph", cpu, 1e6, triplets), "CPU µs per triplet",
         LINEAR),
        ("graph stage's own memory", triplets, figure_per("graph", "own_mib", 2**20, triplets),
         "bytes per triplet", "≤ 1"),
        ("columns and neighbours", triplets, stored, "bytes per triplet", LINEAR),
    ]  # fmt: skip
    if small.index is not None and large.index is not None:
        table += [
            ("nearest chunks and their texts", chunks, neighbours, "µs per query", BELOW_LOG),
            ("index", chunks, building, "CPU µs per vector", LINEAR),
        ]
    details = {
        name: {"corpus": size.corpus, "graph": size.graph, "index": size.indexed}
        for name, size in (("large", large), ("small", small))
    }
    result = []
    for work, count, figure, unit, goal in table:
        more, less = getattr(large, count), getattr(small, count)
        goal = goal.format(log=math.log(more) / math.log(less))
        result.append(
            Row(
                "growth", f"{work}, {count}, {more:,}", f"{less:,}", figure(large), figure(small),
                unit, goal, ours_over_peer=True, details=details,
            )
        )  # fmt: skip
    return result


def _search_graph(size: Size) -> object:
    return [
        size.neighbours.union(size.queries[start : start + store.BATCH])
        for start in range(0, len(size.queries), store.BATCH)
    ]


def _search_chunks(size: Size, index: VectorIndex, query_QD: vectors.Vectors) -> object:
    batches: Any = search_in_batches(index, query_QD)
    return [[size.texts[row] for row in rows.tolist()] for batch in batches for rows, _ in batch]


def _build(folder: Path, chunks: int) -> None:
    import pyarrow as pa
    import pyarrow.parquet as pq

    assert pa  # imported before memory is measured
    assert pq
    with Measured() as spent:
        write_chunks(folder, chunk_documents(documents(chunks), _WORDS))
    print(json.dumps(spent.figures))


if __name__ == "__main__":
    _build(Path(sys.argv[1]), int(sys.argv[2]))
