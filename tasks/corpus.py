"""Chunks and questions."""

from __future__ import annotations

from pathlib import Path

from tasks.base import StageTask
from tasks.world import World


class Corpus(StageTask):
    """Documents cut into chunks, and the questions of all data sets in one format."""

    stage = "corpus"
    version = 2
    entry = "pipeline.stages.corpus:run"
    reads = (
        "corpus",
        "data.sft",
        "data.sampling",
        "data.validation",
        "data.test",
        "data.root",
        "seed",
    )

    def upstream(self) -> dict[str, StageTask]:
        return {"world": self.clone(World)} if self.settings.data.closed_world else {}

    def files(self) -> dict[str, Path | str]:
        if self.settings.data.closed_world:
            return {}
        data = self.settings.data
        paths = [file.path for file in self.settings.corpus.files]
        for group in (data.sft, data.sampling, data.validation, data.test):
            paths.extend(file.path for file in group)
        return {name: Path(data.root or ".") / name for name in dict.fromkeys(paths)}
