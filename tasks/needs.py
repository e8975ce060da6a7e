"""The needs of a stage: GPUs and CPU threads, by the models that it opens.

Input: the task of a stage. Output: `Needs`. `tasks.execution.leases` gives a stage these resources,
and `tasks.planning` counts with the same numbers.
"""

from __future__ import annotations

from dataclasses import dataclass

from pipeline.config.machine_choices import processes_on
from tasks.base import StageTask
from tasks.opened import Opened, Training
from tasks.sharding import shards_of


@dataclass(frozen=True)
class Needs:
    """The GPUs and CPU threads of a stage.

    Attributes:
        gpus: GPUs that the stage uses if it runs on GPUs; 0 for a stage that loads no model.
        threads: CPU threads that it asks for at least, one for each process that computes.
        setting: the setting that decides ``gpus``, for messages.
    """

    gpus: int = 0
    threads: int = 1
    setting: str = ""


NOTHING = Needs()


def needs(task: StageTask, gpus: int | None = None) -> Needs:
    """The needs of the stage of ``task``: the largest needs of its models, which share its GPUs.

    ``gpus`` is the number of GPUs that the stage can have, which decides in how many processes it
    trains (`pipeline.config.machine_choices`); with None it gets as many as it asks for. A divided
    stage only joins the outputs of its shards, and opens no model.
    """
    if shards_of(task):
        return NOTHING
    found = [_of(one, gpus) for one in task.opens() if one.on_device]
    return max(found, key=lambda one: (one.gpus, one.threads), default=NOTHING)


def _of(opened: Opened, gpus: int | None) -> Needs:
    if not isinstance(opened, Training):
        return Needs(opened.gpus, opened.threads, opened.setting if opened.gpus else "")
    here = opened.settings.processes if gpus is None else gpus
    count = processes_on(opened.settings, here)
    return Needs(count if here else 0, count, opened.setting)


def imports_of(task: StageTask) -> tuple[str, ...]:
    """Heavy modules that the stage of ``task`` imports; none for a divided stage."""
    opened = () if shards_of(task) else task.opens()
    return tuple(dict.fromkeys(name for one in opened for name in one.imports))
