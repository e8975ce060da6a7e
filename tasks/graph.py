"""Triplets and entities."""

from __future__ import annotations

from pathlib import Path

from tasks.base import StageTask
from tasks.corpus import Corpus
from tasks.data_files import DataTask
from tasks.fingerprint import model_identity
from tasks.sharding import DivisibleTask, ShardedTask, ShardTask


class _Graph(DataTask, DivisibleTask):
    version = 3
    reads = ("graph", "data.root")

    @property
    def own_shards(self) -> int | None:
        return self.settings.graph.shards

    @property
    def runs_model(self) -> bool:
        return self.settings.graph.source == "llm"

    @property
    def paths(self) -> tuple[str, ...]:
        graph = self.settings.graph
        reads_file = graph.source in ("annotated", "openie")
        return (str(graph.path),) if reads_file else ()

    def upstream(self) -> dict[str, StageTask]:
        return {"corpus": self.clone(Corpus), **super().upstream()}

    def files(self) -> dict[str, Path | str]:
        graph = self.settings.graph
        if graph.source == "llm":
            return {"model": model_identity(graph.model)} if graph.model else {}
        return super().files()


class GraphShard(_Graph, ShardTask):
    """The answers of the model that extracts, for consecutive chunks."""

    stage = "graph-shard"
    entry = "pipeline.stages.graph:run_shard"


class Graph(_Graph, ShardedTask):
    """The knowledge graph of all chunks."""

    stage = "graph"
    entry = "pipeline.stages.graph:run"
    merge_entry = "pipeline.stages.graph:merge"
    shard_kind = GraphShard
