"""Tasks of a run by the names of their stages, read from the configuration alone."""

from collections.abc import Sequence

from pipeline.engine.check.collect import distinct
from pipeline.engine.opened import Opened
from pipeline.engine.stage import StageTask, walk
from tasks.report import Report


def stages(
    config: str, names: Sequence[str], overrides: Sequence[str] = (), data: str | None = None
) -> list[StageTask]:
    """The tasks of the named stages, in running order; shards are not among them."""
    report = Report(config=config, overrides=tuple(overrides), data=data)
    return [task for task in walk(report, lambda one: one.inputs) if task.stage in names]


def opened(config: str, names: Sequence[str], overrides: Sequence[str] = ()) -> list[Opened]:
    """What the named stages open, each once, in running order."""
    return distinct(stages(config, names, overrides))
