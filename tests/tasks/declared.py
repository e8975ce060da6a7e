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


def by_label(*overrides: str, config: str = "embedded") -> dict[str, StageTask]:
    """All stages of a run that has no output yet, in running order, by label."""
    return {stage.label: stage for stage in walk(Report(config=config, overrides=overrides))}


def fingerprints(*overrides: str, config: str = "embedded") -> dict[str, str]:
    """The fingerprints of these stages."""
    stages = by_label(*overrides, config=config)
    return {label: stage.key.fingerprint for label, stage in stages.items()}


def changed(*overrides: str, common: Sequence[str] = ("shards=1",)) -> set[str]:
    """The labels of the stages that ``overrides`` add or give another fingerprint."""
    before, after = fingerprints(*common), fingerprints(*common, *overrides)
    return {label for label in after if after[label] != before.get(label)}
