"""The facts of all chunks: triplets and entities, or n-ary facts."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import ClassVar

import luigi

from pipeline import config
from tasks.base import STAGES, StageTask
from tasks.corpus import Corpus
from tasks.fingerprint import model_identity
from tasks.opened import Opened, Work, chat
from tasks.planning.clock import Clock
from tasks.planning.sizes import (
    ANSWER_BYTES,
    ENTITY_BYTES,
    HYPEREDGE_BYTES,
    TRIPLET_BYTES,
)
from tasks.sharding import DivisibleTask
from tasks.world import DataTask


class _Facts(DataTask, DivisibleTask):
    """Base of both: facts from a file, from a rule, or from a model that reads the chunks."""

    block: ClassVar[str]  # of the settings
    file_sources: ClassVar[tuple[str, ...]]  # sources that read the file ``path``
    fact_kind: ClassVar[str]  # the field of `Sizes` with their number
    fact_bytes: ClassVar[float]

    @property
    def source(self) -> config.Graph | config.Hypergraph:
        """The block of settings."""
        found: config.Graph | config.Hypergraph = getattr(self.settings, self.block)
        return found

    @property
    def runs_model(self) -> bool:
        return self.source.source == "llm"

    @property
    def paths(self) -> tuple[str, ...]:
        return (str(self.source.path),) if self.source.source in self.file_sources else ()

    def upstream(self) -> dict[str, StageTask]:
        return {"corpus": self.clone(Corpus), **super().upstream()}

    def files(self) -> dict[str, Path | str]:
        if self.runs_model:
            return {"model": model_identity(self.source.model)} if self.source.model else {}
        return super().files()

    def opens(self) -> Iterator[Opened]:
        if self.runs_model:
            yield from chat(self.block, self.source)

    def read(self, clock: Clock) -> float:
        """The number of chunks that are read, by the sizes of the data."""
        return clock.sizes.chunks

    def work(self, clock: Clock) -> Work:
        sizes, chunks = clock.sizes, self.read(clock)
        disk = self.fact_bytes * getattr(sizes, self.fact_kind) + ENTITY_BYTES * sizes.entities
        disk += ANSWER_BYTES * chunks * self.runs_model
        return chunks * clock.extraction(self.opens()) + Work(disk=disk)

    def faults(self) -> Iterator[str]:
        from pipeline.corpus.first_records import source_faults

        listed = self.source.source == "annotated"
        for path in super().files().values():
            yield from source_faults(Path(path), f"{self.block}.path", listed=listed)


class Explorable(StageTask):
    """A stage that ``graph.scope: candidates`` has twice.

    The first is for the cold start and for the roll-outs of policy 0 that explore. The second adds
    the passages that these found.
    """

    explored = luigi.BoolParameter(default=False, description="with what policy 0 searches for")

    @property
    def variant(self) -> str | None:
        return "explored" if self.explored else super().variant

    @property
    def made_by(self) -> str | None:
        return "report" if self.explored else None


class Graph(Explorable, _Facts):
    """The knowledge graph of all chunks, or of candidates."""

    stage = "graph"
    help = "knowledge graph of the passages"
    version = 4
    shard_version = 3  # the answers, whose reading is no part of a shard
    entry = "pipeline.stages.graph:run"
    shard_entry = "pipeline.stages.graph:run_shard"
    merge_entry = "pipeline.stages.graph:merge"
    reads = ("graph", "data.root")
    block = "graph"
    file_sources = ("annotated", "openie")
    fact_kind, fact_bytes = "triplets", TRIPLET_BYTES

    def upstream(self) -> dict[str, StageTask]:
        needs = super().upstream()
        if self.settings.graph.scope == "candidates":
            needs["candidates"] = self.clone(STAGES["candidates"])
        return needs

    def read(self, clock: Clock) -> float:
        """The second graph has the answers about the chunks of the first."""
        sizes = clock.sizes
        return sizes.extracted - sizes.reached if self.explored else sizes.reached


class Hypergraph(_Facts):
    """The hypergraph of all chunks."""

    stage = "hypergraph"
    help = "n-ary facts of the passages"
    version = 3
    shard_version = 2
    entry = "pipeline.stages.hypergraph:run"
    shard_entry = "pipeline.stages.hypergraph:run_shard"
    merge_entry = "pipeline.stages.hypergraph:merge"
    reads = ("hypergraph", "data.root")
    block = "hypergraph"
    file_sources = ("annotated",)
    fact_kind, fact_bytes = "hyperedges", HYPEREDGE_BYTES

    def upstream(self) -> dict[str, StageTask]:
        of_triplets = self.settings.hypergraph.source == "triplets"
        return {**super().upstream(), **({"graph": self.clone(Graph)} if of_triplets else {})}
