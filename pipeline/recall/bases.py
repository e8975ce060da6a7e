"""Corpus, graph, hypergraph and indexes of a configuration, built for one measurement.

Purpose: the stages from ``corpus`` to the indexes without the pipeline around them. Input: a
configuration whose ``corpus`` and ``graph`` name the files. Output: their directories. Embeddings
come from the cache below ``cache_dir`` where they are known; the rest is rebuilt in seconds.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from pipeline.config import Config
from pipeline.corpus import stage as corpus_stage
from pipeline.graph import hyper_stage
from pipeline.graph import stage as graph_stage
from pipeline.graph.entities import EntityTable
from pipeline.graph.tables import write_triplets
from pipeline.index import stage as index_stage
from pipeline.records import Chunk, Hyperedge, Triplet, read_records
from pipeline.stage import StageContext


@dataclass(frozen=True, slots=True)
class Bases:
    """Directories as the stages write them; without triplets the graph is empty.

    ``hypergraph`` and its index are those of ``hyperedges``, None where there are none.
    """

    corpus: Path
    graph: Path
    index: Path
    hypergraph: Path | None
    hyper_index: Path | None
    chunks: list[Chunk]
    triplets: list[Triplet]
    hyperedges: list[Hyperedge]
    entities: int


def build_bases(config: Config, folder: Path, *, with_graph: bool) -> Bases:
    """Run the stages below ``folder``; raises what they raise."""
    corpus, graph, index = (folder / name for name in ("corpus", "graph", "index"))
    hypergraph = hyper_index = None
    hyperedges: list[Hyperedge] = []

    def context(stage: str, **inputs: Path) -> StageContext:
        output = folder / stage
        output.mkdir(parents=True)
        return StageContext(config, stage, output, folder / f"{stage}-partial", inputs)

    corpus_stage.run(context("corpus"))
    of_graph = context("graph", corpus=corpus)
    triplets = 0
    if with_graph:
        triplets = graph_stage.run(of_graph)["triplets"]
    else:
        write_triplets(graph, [], EntityTable())
    counts = index_stage.run(context("index", corpus=corpus, graph=graph))
    if triplets:
        hypergraph, hyper_index = folder / "hypergraph", folder / "hyper-index"
        hyper_stage.run(context("hypergraph", corpus=corpus, graph=graph))
        index_stage.run_hyper(context("hyper-index", graph=hypergraph))
        hyperedges = read_records(hypergraph / "hyperedges.parquet", Hyperedge)
    return Bases(
        corpus,
        graph,
        index,
        hypergraph,
        hyper_index,
        read_records(corpus / "chunks.parquet", Chunk),
        read_records(graph / "triplets.parquet", Triplet),
        hyperedges,
        counts["entities"],
    )
