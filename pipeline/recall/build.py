"""Corpus, graph, hypergraph and indexes for one recall measurement.

Input: a configuration whose ``corpus`` and ``graph`` name the files. Output: the directories that
the stages ``corpus`` to ``hyper-index`` write, without a run around them. Embeddings are read from
the cache below ``cache_dir`` if it has them; everything else is rebuilt in seconds. The corpus is
built separately, so that the questions can be checked against it before anything is embedded.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pipeline.config import Config
from pipeline.core.record_io import read_records
from pipeline.core.records import Hyperedge, Triplet
from pipeline.graph.entities import EntityTable
from pipeline.graph.tables import write_triplets
from pipeline.run.context import StageContext
from pipeline.stages import corpus as corpus_stage
from pipeline.stages import graph as graph_stage
from pipeline.stages import hypergraph as hyper_stage
from pipeline.stages import index as index_stage


@dataclass(frozen=True, slots=True)
class BuiltStages:
    """Output directories of the stages, with the triplets and hyperedges read from them.

    Attributes:
        hypergraph, hyper_index: None if there are no hyperedges.
        entities: number of entities in the index.
        faiss: kind and parameters of each FAISS index, by table.
    """

    corpus: Path
    graph: Path
    index: Path
    hypergraph: Path | None
    hyper_index: Path | None
    triplets: list[Triplet]
    hyperedges: list[Hyperedge]
    entities: int
    faiss: dict[str, dict[str, Any]]


def build_corpus(config: Config, folder: Path) -> Path:
    """Run the stage ``corpus`` below ``folder`` and return its directory.

    Raises the errors of the stage.
    """
    context = _context(config, folder, "corpus")
    corpus_stage.run(context)
    return context.output


def build_stages(config: Config, folder: Path, corpus: Path, *, with_graph: bool) -> BuiltStages:
    """Run the stages after ``corpus`` below ``folder``; the graph is empty without ``with_graph``.

    Raises the errors of the stages.
    """
    graph, index = folder / "graph", folder / "index"
    hypergraph = hyper_index = None
    hyperedges: list[Hyperedge] = []
    graph_context = _context(config, folder, "graph", corpus=corpus)
    triplets = 0
    if with_graph:
        triplets = graph_stage.run(graph_context)["triplets"]
    else:
        write_triplets(graph, [], EntityTable())
    index_context = _context(config, folder, "index", corpus=corpus, graph=graph)
    counts = index_stage.run(index_context)
    faiss = dict(index_context.notes["faiss"])
    if triplets:
        hypergraph, hyper_index = folder / "hypergraph", folder / "hyper-index"
        hyper_stage.run(_context(config, folder, "hypergraph", corpus=corpus, graph=graph))
        hyper_index_context = _context(config, folder, "hyper-index", graph=hypergraph)
        index_stage.run_hyper(hyper_index_context)
        faiss["hyperedges"] = hyper_index_context.notes["faiss"]["hyperedges"]
        hyperedges = read_records(hypergraph / "hyperedges.parquet", Hyperedge)
    return BuiltStages(
        corpus,
        graph,
        index,
        hypergraph,
        hyper_index,
        read_records(graph / "triplets.parquet", Triplet),
        hyperedges,
        counts["entities"],
        faiss,
    )


def _context(config: Config, folder: Path, stage: str, **inputs: Path) -> StageContext:
    output = folder / stage
    output.mkdir(parents=True)
    return StageContext(config, stage, output, folder / f"{stage}-checkpoints", inputs)
