"""N-ary facts, and the embeddings and indexes over them."""

from __future__ import annotations

from pathlib import Path

from tasks.base import StageTask
from tasks.corpus import Corpus
from tasks.fingerprint import model_identity
from tasks.graph import Graph
from tasks.world import World


class Hypergraph(StageTask):
    """The hypergraph of all chunks."""

    stage = "hypergraph"
    entry = "pipeline.stages.hypergraph:run"
    reads = ("hypergraph", "data.root")

    def upstream(self) -> dict[str, StageTask]:
        needs: dict[str, StageTask] = {"corpus": self.clone(Corpus)}
        if self.settings.hypergraph.source == "triplets":
            needs["graph"] = self.clone(Graph)
        elif self.settings.data.closed_world:
            needs["world"] = self.clone(World)
        return needs

    def files(self) -> dict[str, Path | str]:
        settings = self.settings.hypergraph
        if settings.source == "llm":
            return {"model": model_identity(settings.model)} if settings.model else {}
        if settings.source == "triplets" or self.settings.data.closed_world:
            return {}
        return {str(settings.path): Path(self.settings.data.root or ".") / str(settings.path)}


class HyperIndex(StageTask):
    """Embeddings and indexes of hyperedges and their entities."""

    stage = "hyper-index"
    version = 2
    entry = "pipeline.stages.index:run_hyper"
    reads = ("index",)

    def upstream(self) -> dict[str, StageTask]:
        return {"corpus": self.clone(Corpus), "graph": self.clone(Hypergraph)}

    def files(self) -> dict[str, Path | str]:
        return {"embedder": model_identity(self.settings.index.embedder.model)}
