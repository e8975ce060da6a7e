"""Chunks."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from tasks.base import StageTask
from tasks.data_files import raw_files, world_input, world_patterns


class Corpus(StageTask):
    """Documents cut into chunks."""

    stage = "corpus"
    version = 3
    entry = "pipeline.stages.corpus:run"
    reads = ("corpus", "data.root")

    @property
    def _paths(self) -> tuple[str, ...]:
        return tuple(file.path for file in self.settings.corpus.files)

    def upstream(self) -> dict[str, StageTask]:
        return world_input(self, self._paths)

    @property
    def input_files(self) -> Mapping[str, tuple[str, ...]]:
        return world_patterns(self, self._paths)

    def files(self) -> dict[str, Path | str]:
        return raw_files(self, self._paths)
