"""Chunks."""

from __future__ import annotations

from tasks.data_files import DataTask


class Corpus(DataTask):
    """Documents cut into chunks."""

    stage = "corpus"
    version = 3
    entry = "pipeline.stages.corpus:run"
    reads = ("corpus", "data.root")

    @property
    def paths(self) -> tuple[str, ...]:
        return tuple(file.path for file in self.settings.corpus.files)
