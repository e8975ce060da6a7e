"""Triplets and entities."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from tasks.base import StageTask
from tasks.corpus import Corpus
from tasks.data_files import raw_files, world_input, world_patterns
from tasks.fingerprint import model_identity


class Graph(StageTask):
    """The knowledge graph of all chunks."""

    stage = "graph"
    version = 2
    entry = "pipeline.stages.graph:run"
    reads = ("graph", "data.root")

    @property
    def _paths(self) -> tuple[str, ...]:
        graph = self.settings.graph
        reads_file = graph.source in ("annotated", "openie")
        return (str(graph.path),) if reads_file else ()

    def upstream(self) -> dict[str, StageTask]:
        return {"corpus": self.clone(Corpus), **world_input(self, self._paths)}

    @property
    def input_files(self) -> Mapping[str, tuple[str, ...]]:
        return world_patterns(self, self._paths)

    def files(self) -> dict[str, Path | str]:
        graph = self.settings.graph
        if graph.source == "llm":
            return {"model": model_identity(graph.model)} if graph.model else {}
        return raw_files(self, self._paths)
