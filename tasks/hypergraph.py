"""N-ary facts, and the embeddings and indexes over them."""

from __future__ import annotations

from pathlib import Path

from tasks.base import StageTask
from tasks.corpus import Corpus
from tasks.data_files import DataTask
from tasks.fingerprint import model_identity
from tasks.graph import Graph
from tasks.sharding import DivisibleTask, ShardedTask, ShardTask


class _Hypergraph(DataTask, DivisibleTask):
    version = 2
    reads = ("hypergraph", "data.root")

    @property
    def own_shards(self) -> int | None:
        return self.settings.hypergraph.shards

    @property
    def runs_model(self) -> bool:
        return self.settings.hypergraph.source == "llm"

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


class HypergraphShard(_Hypergraph, ShardTask):
    """The answers of the model that extracts, for consecutive chunks."""

    stage = "hypergraph-shard"
    entry = "pipeline.stages.hypergraph:run_shard"


class Hypergraph(_Hypergraph, ShardedTask):
    """The hypergraph of all chunks."""

    stage = "hypergraph"
    entry = "pipeline.stages.hypergraph:run"
    merge_entry = "pipeline.stages.hypergraph:merge"
    shard_kind = HypergraphShard


class _HyperIndex(DivisibleTask):
    version = 3
    reads = ("index",)

    @property
    def own_shards(self) -> int | None:
        return self.settings.index.shards

    def upstream(self) -> dict[str, StageTask]:
        return {"corpus": self.clone(Corpus), "graph": self.clone(Hypergraph)}

    def files(self) -> dict[str, Path | str]:
        return {"embedder": model_identity(self.settings.index.embedder.model)}


class HyperIndexShard(_HyperIndex, ShardTask):
    """Embeddings of consecutive rows of every table of the hypergraph."""

    stage = "hyper-index-shard"
    entry = "pipeline.stages.index:run_hyper_shard"


class HyperIndex(_HyperIndex, ShardedTask):
    """Embeddings and indexes of hyperedges and their entities."""

    stage = "hyper-index"
    entry = "pipeline.stages.index:run_hyper"
    merge_entry = "pipeline.stages.index:merge_hyper"
    shard_kind = HyperIndexShard
