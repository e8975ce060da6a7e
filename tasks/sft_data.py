"""Task of stage ``sft-data``: supervised trajectories."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from tasks.base import StageTask
from tasks.corpus import Corpus
from tasks.fingerprint import model_identity, select
from tasks.graph import Graph
from tasks.hypergraph import Hypergraph


class SftData(StageTask):
    """Supervised trajectories from MuSiQue-shaped decompositions."""

    stage = "sft-data"
    version = 2
    entry = "pipeline.stages.sft_data:run"
    reads = ("sft_data", "prompt", "grammar", "seed")

    def upstream(self) -> dict[str, StageTask]:
        facts = Hypergraph if self.settings.teaches_hyperedges else Graph
        return {"corpus": self.clone(Corpus), "graph": self.clone(facts)}

    @property
    def _asks_graph_model(self) -> bool:
        """Whether the graph's model may extract from paragraphs that the corpus does not hold."""
        settings = self.settings
        by_graph = settings.sft_data.triplets == "graph" and settings.graph.source == "llm"
        return by_graph and not settings.teaches_hyperedges

    def files(self) -> dict[str, Path | str]:
        settings = self.settings.sft_data
        files = {"model": model_identity(settings.model)} if settings.model else {}
        if self._asks_graph_model and self.settings.graph.model:
            files["graph model"] = model_identity(self.settings.graph.model)
        if settings.memory is not None:
            files["base model"] = model_identity(self.settings.model.base)
        return files

    def slice(self) -> dict[str, Any]:
        """Adds the kinds of shown items, and the settings of models that `reads` does not name."""
        values = super().slice()
        if self.settings.method.sft_shows_retrieved_kinds:
            values["retrieval.shows"] = list(self.settings.retrieval.shows)
        if self._asks_graph_model:
            graph = ("graph.model", "graph.engine", "graph.endpoint")
            values |= select(self.settings, graph)
        if self._asks_graph_model or self.settings.sft_data.triplets == "llm":
            values |= select(self.settings, ("corpus.chunk_words",))
        if self.settings.sft_data.memory is None:
            return values
        judges = self.settings.judges
        base_model = select(self.settings, ("engine", "model.chat_template"))
        return {**values, **base_model, "judges.system": judges.system if judges else None}
