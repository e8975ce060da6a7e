"""Corpus, graph and index of a configuration, built for one measurement.

Purpose: the stages ``corpus``, ``graph`` and ``index`` without the pipeline around them. Input: a
configuration whose ``corpus`` and ``graph`` name the files. Output: their directories. Embeddings
come from the cache below ``cache_dir`` where they are known; the rest is rebuilt in seconds.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from pipeline.config import Config
from pipeline.corpus import stage as corpus_stage
from pipeline.graph import stage as graph_stage
from pipeline.graph.entities import EntityTable
from pipeline.graph.tables import write_triplets
from pipeline.index import stage as index_stage
from pipeline.records import Chunk, Triplet, read_records
from pipeline.stage import StageContext


@dataclass(frozen=True, slots=True)
class Bases:
    """Directories as the stages write them; without triplets the graph is empty."""

    corpus: Path
    graph: Path
    index: Path
    chunks: list[Chunk]
    triplets: list[Triplet]
    entities: int


def build_bases(config: Config, folder: Path, *, with_graph: bool) -> Bases:
    """Run the stages below ``folder``; raises what they raise."""
    corpus, graph, index = (folder / name for name in ("corpus", "graph", "index"))

    def context(stage: str, **inputs: Path) -> StageContext:
        output = folder / stage
        output.mkdir(parents=True)
        return StageContext(config, stage, output, folder / f"{stage}-partial", inputs)

    corpus_stage.run(context("corpus"))
    of_graph = context("graph", corpus=corpus)
    if with_graph:
        graph_stage.run(of_graph)
    else:
        write_triplets(graph, [], EntityTable())
    counts = index_stage.run(context("index", corpus=corpus, graph=graph))
    return Bases(
        corpus,
        graph,
        index,
        read_records(corpus / "chunks.parquet", Chunk),
        read_records(graph / "triplets.parquet", Triplet),
        counts["entities"],
    )
