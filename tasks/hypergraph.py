"""N-ary facts, and the embeddings and indexes over them."""

from __future__ import annotations

from pathlib import Path

from tasks.base import StageTask
from tasks.corpus import Corpus
from tasks.data_files import DataTask
from tasks.fingerprint import model_identity
from tasks.graph import Graph


class Hypergraph(DataTask):
    """The hypergraph of all chunks."""

    stage = "hypergraph"
    entry = "pipeline.stages.hypergraph:run"
    reads = ("hypergraph", "data.root")

    @property
    def paths(self) -> tuple[str, ...]:
        settings = self.settings.hypergraph
        return (str(settings.path),) if settings.source == "annotated" else ()

    def upstream(self) -> dict[str, StageTask]:
        needs: dict[str, StageTask] = {"corpus": self.clone(Corpus)}
        if self.settings.hypergraph.source == "triplets":
            needs["graph"] = self.clone(Graph)
        return {**needs, **super().upstream()}

    def files(self) -> dict[str, Path | str]:
        settings = self.settings.hypergraph
        if settings.source == "llm":
            return {"model": model_identity(settings.model)} if settings.model else {}
        return super().files()


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
