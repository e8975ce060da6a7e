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
ratio of 1. The searches of all sizes alternate. Dotted lines of the picture extrapolate to the
paper's size (TeaRAG, arXiv 2511.05385, tables 4 and 5), in proportion to the largest size that was
built.
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
from benchmarks.index import LEAST_COMPRESSED, NEIGHBORS, search_in_batches
from benchmarks.measured_process import Measured, cached_figures, run_measured
from benchmarks.timing import Row, alternate, per
from pipeline.core.columns import Columns
from pipeline.corpus.chunk import chunk_documents
from pipeline.corpus.raw_records import Document
from pipeline.graph.adjacency import Adjacency
from pipeline.index.faiss_index import VectorIndex
from pipeline.stages.corpus import write_chunks

TRIPLETS_PER_CHUNK = 10
PAPER_CHUNKS, PAPER_TRIPLETS = 21_015_324, 130_931_564
_HOST_GB = 128
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


def rows(chunks: Sequence[int], repeats: int, folder: Path, plot: Path | None = None) -> list[Row]:
    """Growth from each size to the next; ``plot`` is the file of the picture.

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
    if plot is not None:
        _draw(plot, sizes, one_hop, nearest)
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
    small: Size,
    large: Size,
    one_hop: dict[str, list[float]],
    nearest: dict[str, list[float]],
) -> list[Row]:
    def row(work: str, count: Callable[[Size], int], figure: Figure, unit: str, goal: str) -> Row:
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
            details={
                name: {"corpus": size.corpus, "graph": size.graph, "index": size.indexed}
                for name, size in (("large", large), ("small", small))
            },
        )

    def triplets(size: Size) -> int:
        return size.triplets

    def chunks(size: Size) -> int:
        return size.chunks

    def figure_per(part: str, figure: str, scale: float, count: Callable[[Size], int]) -> Figure:
        return lambda size: [getattr(size, part)[figure] * scale / count(size)]

    result = [
        row(
            "one hop, triplets",
            triplets,
            lambda size: per(one_hop[str(size.chunks)], _QUERIES),
            "µs per query",
            BELOW_LOG,
        ),
        row(
            "corpus, chunks",
            chunks,
            figure_per("corpus", "cpu_seconds", 1e6, chunks),
            "CPU µs per chunk",
            LINEAR,
        ),
        row(
            "graph stage, triplets",
            triplets,
            figure_per("graph", "cpu_seconds", 1e6, triplets),
            "CPU µs per triplet",
            LINEAR,
        ),
        row(
            "graph stage's own memory, triplets",
            triplets,
            figure_per("graph", "own_mib", 2**20, triplets),
            "bytes per triplet",
            "≤ 1",
        ),
        row(
            "columns and neighbours, triplets",
            triplets,
            lambda size: [size.store_bytes / size.triplets],
            "bytes per triplet",
            LINEAR,
        ),
    ]
    if small.index is not None and large.index is not None:
        result += [
            row(
                "nearest chunks and their texts, chunks",
                chunks,
                lambda size: per(nearest[str(size.chunks)], _QUERIES),
                "µs per query",
                BELOW_LOG,
            ),
            row(
                "index, chunks",
                chunks,
                figure_per("indexed", "cpu_seconds", 1e6, chunks),
                "CPU µs per vector",
                LINEAR,
            ),
        ]
    return result


def _search_graph(size: Size) -> object:
    return [
        size.neighbours.union(size.queries[start : start + store.BATCH])
        for start in range(0, len(size.queries), store.BATCH)
    ]


def _search_chunks(size: Size, index: VectorIndex, query_QD: vectors.Vectors) -> object:
    batches: Any = search_in_batches(index, query_QD)
    return [[size.texts[row] for row in rows.tolist()] for batch in batches for rows, _ in batch]


def _draw(
    path: Path,
    sizes: Sequence[Size],
    one_hop: dict[str, list[float]],
    nearest: dict[str, list[float]],
) -> None:
    import matplotlib

    matplotlib.use("Agg")
    # Text stays text and element names are fixed, so that only changed figures change the file.
    matplotlib.rcParams.update({"svg.fonttype": "none", "svg.hashsalt": "growth"})
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(1, 3, figsize=(13, 4), constrained_layout=True)
    indexed = [size for size in sizes if size.indexed is not None]

    def grows(axis: Any, of: Sequence[Size], value: Callable[[Size], float], label: str) -> None:
        """A measured line, and a dotted extrapolation of its last point to the paper's size."""
        values = [value(size) for size in of]
        (line,) = axis.plot([size.chunks for size in of], values, marker="o", label=label)
        paper = PAPER_TRIPLETS / of[-1].triplets if value in by_triplet else None
        factor = paper or PAPER_CHUNKS / of[-1].chunks
        axis.plot(
            [of[-1].chunks, PAPER_CHUNKS],
            [values[-1], values[-1] * factor],
            ":",
            color=line.get_color(),
        )

    def graph_hours(size: Size) -> float:
        return float(size.graph["cpu_seconds"]) / 3600

    def graph_gb(size: Size) -> float:
        return float(size.graph["own_mib"]) / 1000

    def store_gb(size: Size) -> float:
        return size.store_bytes / 1e9

    def index_hours(size: Size) -> float:
        assert size.indexed is not None
        return float(size.indexed["cpu_seconds"]) / 3600

    def index_gb(size: Size) -> float:
        assert size.indexed is not None
        return float(size.indexed["file_bytes"]) / 1e9

    by_triplet = (graph_hours, graph_gb, store_gb)
    grows(axes[0], sizes, lambda size: size.corpus["cpu_seconds"] / 3600, "corpus")
    grows(axes[0], sizes, graph_hours, "graph")
    grows(axes[1], sizes, graph_gb, "graph stage, its own")
    grows(axes[1], sizes, store_gb, "triplets and neighbours, mapped")
    grows(axes[1], sizes, lambda size: size.texts.nbytes / 1e9, "chunks, mapped")
    if indexed:
        grows(axes[0], indexed, index_hours, "index (IVF-PQ)")
        grows(axes[1], indexed, index_gb, "index (IVF-PQ)")
    axes[1].axhline(_HOST_GB, color="grey", linewidth=0.8)
    axes[1].annotate(f"{_HOST_GB} GB", (sizes[0].chunks, _HOST_GB), va="bottom", color="grey")
    for seconds, label in ((one_hop, "one hop"), (nearest, f"{NEIGHBORS} nearest chunks")):
        medians = [float(np.median(per(seconds[key], _QUERIES))) for key in seconds]
        axes[2].plot([int(key) for key in seconds], medians, marker="o", label=label)
    titles = ("building, hours of one core", "memory, GB", "latency, µs per query")
    for axis, title in zip(axes, titles, strict=True):
        axis.set(title=title, xlabel="chunks (ten triplets each)", xscale="log", yscale="log")
        axis.grid(True, which="major", alpha=0.3)
        axis.legend(fontsize="small")
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, metadata={"Date": None} if path.suffix == ".svg" else None)
    pyplot.close(figure)


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
