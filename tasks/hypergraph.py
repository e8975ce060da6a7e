"""N-ary facts."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from pipeline.corpus.first_records import source_faults
from tasks.base import StageTask
from tasks.corpus import Corpus
from tasks.data_files import DataTask
from tasks.fingerprint import model_identity
from tasks.graph import Graph
from tasks.opened import Opened, Work, chat
from tasks.planning.clock import Clock
from tasks.planning.sizes import ANSWER_BYTES, ENTITY_BYTES, GRAPH_BYTES_PER_CHUNK, HYPEREDGE_BYTES
from tasks.sharding import DivisibleTask, ShardedTask, ShardTask


class _Hypergraph(DataTask, DivisibleTask):
    version = 2
    reads = ("hypergraph", "data.root")

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

    def opens(self) -> Iterator[Opened]:
        if self.runs_model:
            yield from chat("hypergraph", self.settings.hypergraph)

    def work(self, clock: Clock) -> Work:
        sizes = clock.sizes
        disk = HYPEREDGE_BYTES * sizes.hyperedges + ENTITY_BYTES * sizes.entities
        disk += ANSWER_BYTES * sizes.chunks * self.runs_model
        ram = GRAPH_BYTES_PER_CHUNK * sizes.chunks
        return Work(clock.extraction(self.opens()), ram, disk)

    def faults(self) -> Iterator[str]:
        for path in super().files().values():
            yield from source_faults(Path(path), "hypergraph.path", listed=True)


class HypergraphShard(_Hypergraph, ShardTask):
    """The answers of the model that extracts, for consecutive chunks."""

    stage = "hypergraph-shard"
    entry = "pipeline.stages.hypergraph:run_shard"


class Hypergraph(_Hypergraph, ShardedTask):
    """The hypergraph of all chunks."""

    stage = "hypergraph"
    help = "n-ary facts of the passages"
    entry = "pipeline.stages.hypergraph:run"
    merge_entry = "pipeline.stages.hypergraph:merge"
    shard_kind = HypergraphShard
