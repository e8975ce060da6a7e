"""Supervised paths."""

from __future__ import annotations

from pathlib import Path

from tasks.base import StageTask, model_identity
from tasks.corpus import Corpus
from tasks.graph import Graph


class SftData(StageTask):
    """Supervised reasoning paths from MuSiQue-shaped decompositions."""

    stage = "sft-data"
    version = 2
    entry = "pipeline.sft_data.stage:run"
    reads = ("sft_data", "prompt", "grammar", "seed")

    def upstream(self) -> dict[str, StageTask]:
        return {"corpus": self.clone(Corpus), "graph": self.clone(Graph)}

    def files(self) -> dict[str, Path | str]:
        model = self.settings.sft_data.model
        return {"model": model_identity(model)} if model else {}
