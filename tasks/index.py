"""Embeddings and FAISS indexes."""

from __future__ import annotations

from pathlib import Path

from tasks.base import StageTask
from tasks.corpus import Corpus
from tasks.fingerprint import model_identity
from tasks.graph import Graph


class Index(StageTask):
    """Embeddings and indexes of chunks, entities and triplets."""

    stage = "index"
    version = 4
    entry = "pipeline.stages.index:run"
    reads = ("index",)

    def upstream(self) -> dict[str, StageTask]:
        return {"corpus": self.clone(Corpus), "graph": self.clone(Graph)}

    def files(self) -> dict[str, Path | str]:
        return {"embedder": model_identity(self.settings.index.embedder.model)}
