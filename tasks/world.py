"""The closed world's files."""

from __future__ import annotations

from functools import cached_property
from pathlib import Path

from pipeline.run.store import Store
from tasks.base import LightTask


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
