"""Stage ``world``: writes the closed world's corpus and questions in native data formats."""

from __future__ import annotations

import glob
from collections.abc import Iterator, Mapping
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

from pipeline.closed_world.file_names import FACT_FILES, question_files
from pipeline.core.errors import ConfigError
from pipeline.engine.stage import LightTask, StageTask

if TYPE_CHECKING:
    from pipeline.engine.context import StageContext
    from pipeline.engine.store import Store


class World(LightTask):
    """The generated world: documents, annotations and questions in native formats.

    It is kept below ``data/closed_world/`` and shared by all runs with the same settings of it.
    """

    stage = "world"
    help = "documents and questions of the closed world"
    reads = ("data.closed_world",)

    @cached_property
    def store(self) -> Store:
        from pipeline.engine.store import Store

        return Store(Path("data") / "closed_world")


class DataTask(StageTask):
    """A stage that reads data files: raw files, or files of the closed world."""

    @property
    def paths(self) -> tuple[str, ...]:
        """The data files that the stage reads, as the configuration names them."""
        raise NotImplementedError

    def world(self) -> dict[str, StageTask]:
        """The closed world by its name among the inputs, if it has a file that the stage reads."""
        return {"world": self.clone(World)} if self._of_world else {}

    @cached_property
    def inputs(self) -> dict[str, StageTask]:
        return self.world()

    @property
    def input_files(self) -> Mapping[str, tuple[str, ...]]:
        inside = tuple(glob.escape(str(Path(path))) for path in self._of_world)
        return {"world": inside} if inside else {}

    def files(self) -> dict[str, Path | str]:
        root = Path(self.settings.data.root or ".")
        return {path: root / path for path in self.paths if path not in self._of_world}

    def faults(self) -> Iterator[str]:
        """A sentence for each file that the closed world will not have."""
        made = *FACT_FILES, *question_files(dict(self.settings.data.closed_world or ()))
        for path in self._of_world:
            if not glob.has_magic(path) and str(Path(path)) not in (".", *made):
                yield f"{path}: the closed world has no such file; it has {', '.join(made)}"

    @property
    def _of_world(self) -> list[str]:
        if self.settings.data.closed_world is None:
            return []
        return [path for path in self.paths if not Path(path).is_absolute()]


def run(context: StageContext) -> dict[str, int]:
    """Write documents, annotations and questions of the configured world.

    Returns the number of records per file. Raises `ConfigError` when ``data.closed_world`` is not
    set, and InputError when the world is too small for its questions.
    """
    from pipeline.closed_world.fact_generation import NearMisses
    from pipeline.closed_world.write import write_closed_world

    settings = context.config.data.closed_world
    if settings is None:
        raise ConfigError("data.closed_world is not set; the stage `world` needs it; set its sizes")
    shares = {"famous_share", "comparison_share", *NearMisses._fields}
    sizes = settings.model_dump(exclude={"seed", "documents", *shares})
    print(f"seed {settings.seed}, {settings.documents:,} documents, questions: {sizes}")
    return write_closed_world(
        context.output,
        seed=settings.seed,
        documents=settings.documents,
        sizes=sizes,
        famous_share=settings.famous_share,
        comparison_share=settings.comparison_share,
        near_misses=NearMisses(settings.common_share, settings.family_share),
        progress=context.progress,
    )
