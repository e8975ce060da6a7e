"""Task of stage ``sft-data``: supervised trajectories."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tasks.base import StageTask
from tasks.corpus import Corpus
from tasks.fingerprint import model_identity, select
from tasks.graph import Graph
from tasks.hypergraph import Hypergraph
from tasks.questions import QUESTIONS_READ, questions


class SftData(StageTask):
    """Supervised trajectories from MuSiQue-shaped decompositions."""

    stage = "sft-data"
    version = 2
    entry = "pipeline.stages.sft_data:run"
    reads = ("sft_data", "prompt", "grammar", "seed")

    def upstream(self) -> dict[str, StageTask]:
        facts = Hypergraph if self.settings.teaches_hyperedges else Graph
        return {
            "corpus": self.clone(Corpus),
            "graph": self.clone(facts),
            "questions": questions(self, "sft"),
        }

    @property
    def input_files(self) -> Mapping[str, tuple[str, ...]]:
        return QUESTIONS_READ

    def files(self) -> dict[str, Path | str]:
        settings = self.settings.sft_data
        files = {"model": model_identity(settings.model)} if settings.model else {}
        if settings.memory is not None:
            files["base model"] = model_identity(self.settings.model.base)
        return files

    def slice(self) -> dict[str, Any]:
        """Adds the kinds of shown items, and the settings of the base model that memory steps use."""
        values = super().slice()
        if self.settings.method.sft_shows_retrieved_kinds:
            values["retrieval.shows"] = list(self.settings.retrieval.shows)
        if self.settings.sft_data.memory is None:
            return values
        judges = self.settings.judges
        base_model = select(self.settings, ("engine", "model.chat_template"))
        return {**values, **base_model, "judges.system": judges.system if judges else None}
