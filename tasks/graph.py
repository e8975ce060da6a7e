"""Triplets and entities."""

from __future__ import annotations

from pathlib import Path

from tasks.base import StageTask
from tasks.corpus import Corpus
from tasks.fingerprint import model_identity
from tasks.world import World


class Graph(StageTask):
    """The knowledge graph of all chunks."""

    stage = "graph"
    version = 2
    entry = "pipeline.stages.graph:run"
    reads = ("graph", "data.root")

    def upstream(self) -> dict[str, StageTask]:
        needs: dict[str, StageTask] = {"corpus": self.clone(Corpus)}
        if self.settings.data.closed_world:
            needs["world"] = self.clone(World)
        return needs

    def files(self) -> dict[str, Path | str]:
        graph = self.settings.graph
        if graph.source == "llm":
            return {"model": model_identity(graph.model)} if graph.model else {}
        if self.settings.data.closed_world or graph.source in ("titles", "none"):
            return {}
        return {str(graph.path): Path(self.settings.data.root or ".") / str(graph.path)}
