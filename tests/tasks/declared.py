"""Tasks of a run, and their fingerprints, read from the configuration alone."""

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


def fingerprints(*overrides: str, config: str = "embedded") -> dict[str, str]:
    """The fingerprints of all stages of a run by label."""
    report = Report(config=config, overrides=overrides)
    return {stage.label: stage.key.fingerprint for stage in walk(report)}


def changed(*overrides: str, common: Sequence[str] = ("shards=1",)) -> set[str]:
    """The labels of the stages that ``overrides`` add or give another fingerprint."""
    before, after = fingerprints(*common), fingerprints(*common, *overrides)
    return {label for label in after if after[label] != before.get(label)}
