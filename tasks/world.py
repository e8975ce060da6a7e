"""The closed world, and the base of stages that read its files or raw files.

With a closed world, relative paths name files that the stage ``world`` writes; all other paths name
raw files, whose content enters fingerprints.
"""

from __future__ import annotations

import glob
from collections.abc import Mapping
from functools import cached_property
from pathlib import Path

from pipeline.run.store import Store
from tasks.base import LightTask, StageTask


class World(LightTask):
    """The generated world: documents, annotations and questions in native formats.

    It is kept below ``data/closed_world/`` and shared by all runs with the same settings of it.
    """

    stage = "world"
    help = "documents and questions of the closed world"
    entry = "pipeline.stages.world:run"
    reads = ("data.closed_world",)

    @cached_property
    def store(self) -> Store:
        return Store(Path("data") / "closed_world")


class DataTask(StageTask):
    """A stage that reads data files: raw files, or files of the closed world."""

    @property
    def paths(self) -> tuple[str, ...]:
        """The data files that the stage reads, as the configuration names them."""
        raise NotImplementedError

    def upstream(self) -> dict[str, StageTask]:
        return {"world": self.clone(World)} if self._of_world else {}

    @property
    def input_files(self) -> Mapping[str, tuple[str, ...]]:
        inside = tuple(glob.escape(str(Path(path))) for path in self._of_world)
        return {"world": inside} if inside else {}

    def files(self) -> dict[str, Path | str]:
        root = Path(self.settings.data.root or ".")
        return {path: root / path for path in self.paths if path not in self._of_world}

    @property
    def _of_world(self) -> list[str]:
        if self.settings.data.closed_world is None:
            return []
        return [path for path in self.paths if not Path(path).is_absolute()]
