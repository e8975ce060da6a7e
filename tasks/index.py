"""Embeddings and FAISS indexes."""

from __future__ import annotations

from pathlib import Path

from tasks.base import StageTask
from tasks.corpus import Corpus
from tasks.fingerprint import model_identity
from tasks.graph import Graph
from tasks.sharding import DivisibleTask, ShardedTask, ShardTask


class _Index(DivisibleTask):
    version = 5
    reads = ("index",)

    @property
    def own_shards(self) -> int | None:
        return self.settings.index.shards

    def upstream(self) -> dict[str, StageTask]:
        return {"corpus": self.clone(Corpus), "graph": self.clone(Graph)}

    def files(self) -> dict[str, Path | str]:
        return {"embedder": model_identity(self.settings.index.embedder.model)}


class IndexShard(_Index, ShardTask):
    """Embeddings of consecutive rows of every table."""

    stage = "index-shard"
    entry = "pipeline.stages.index:run_shard"


class Index(_Index, ShardedTask):
    """Embeddings and indexes of chunks, entities and triplets."""

    stage = "index"
    entry = "pipeline.stages.index:run"
    merge_entry = "pipeline.stages.index:merge"
    shard_kind = IndexShard
