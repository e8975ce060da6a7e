"""Triplets and entities."""

from __future__ import annotations

from pathlib import Path

from tasks.base import StageTask
from tasks.corpus import Corpus
from tasks.data_files import DataTask
from tasks.fingerprint import model_identity


class Graph(DataTask):
    """The knowledge graph of all chunks."""

    stage = "graph"
    version = 2
    entry = "pipeline.stages.graph:run"
    reads = ("graph", "data.root")

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
