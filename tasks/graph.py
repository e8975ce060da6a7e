"""Triplets and entities."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from pipeline.corpus.first_records import source_faults
from tasks.base import StageTask
from tasks.corpus import Corpus
from tasks.data_files import DataTask
from tasks.fingerprint import model_identity
from tasks.opened import Opened, Work, chat
from tasks.planning.clock import Clock
from tasks.planning.sizes import ANSWER_BYTES, ENTITY_BYTES, GRAPH_BYTES_PER_CHUNK, TRIPLET_BYTES
from tasks.sharding import DivisibleTask, ShardedTask, ShardTask


class _Graph(DataTask, DivisibleTask):
    version = 3
    reads = ("graph", "data.root")

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

    def opens(self) -> Iterator[Opened]:
        if self.runs_model:
            yield from chat("graph", self.settings.graph)

    def work(self, clock: Clock) -> Work:
        sizes = clock.sizes
        disk = TRIPLET_BYTES * sizes.triplets + ENTITY_BYTES * sizes.entities
        disk += ANSWER_BYTES * sizes.chunks * self.runs_model
        ram = GRAPH_BYTES_PER_CHUNK * sizes.chunks * (self.settings.graph.source != "none")
        return Work(clock.extraction(self.opens()), ram, disk)

    def faults(self) -> Iterator[str]:
        for path in super().files().values():
            yield from source_faults(
                Path(path), "graph.path", listed=self.settings.graph.source == "annotated"
            )


class GraphShard(_Graph, ShardTask):
    """The answers of the model that extracts, for consecutive chunks."""

    stage = "graph-shard"
    entry = "pipeline.stages.graph:run_shard"


class Graph(_Graph, ShardedTask):
    """The knowledge graph of all chunks."""

    stage = "graph"
    help = "knowledge graph of the passages"
    spare_ram = "use a machine with more, or a smaller corpus"
    entry = "pipeline.stages.graph:run"
    merge_entry = "pipeline.stages.graph:merge"
    shard_kind = GraphShard
