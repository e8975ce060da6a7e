"""The needs of a stage: GPUs and CPU threads, by the models that it opens.

Input: the task of a stage. Output: `Needs`. `pipeline.engine.leases` gives a stage these
resources, and `pipeline.engine.plan` counts with the same numbers.
"""

from __future__ import annotations

import dis
from collections.abc import Iterator
from types import FunctionType, ModuleType

from pipeline.config.machine_choices import processes_on
from pipeline.engine.opened import Needs, Opened, Training
from pipeline.engine.stage import StageTask

NOTHING = Needs()


def needs(task: StageTask, gpus: int | None = None) -> Needs:
    """The needs of the stage of ``task``: the largest needs of its models, which share its GPUs.

    ``gpus`` is the number of GPUs that the stage can have, which decides in how many processes it
    trains (`pipeline.config.machine_choices`); with None it gets as many as it asks for. A divided
    stage only joins the outputs of its shards, and opens no model.
    """
    if task.shards():
        return NOTHING
    found = [_of(one, gpus) for one in task.opens() if one.on_device]
    return max(found, key=lambda one: (one.gpus, one.threads), default=NOTHING)


def _of(opened: Opened, gpus: int | None) -> Needs:
    if not isinstance(opened, Training):
        return opened.needs
    here = opened.settings.processes if gpus is None else gpus
    count = processes_on(opened.settings, here)
    return Needs(count if here else 0, count, f"{opened.block}.processes")


def imports_of(task: StageTask) -> tuple[str, ...]:
    """Heavy modules that the stage of ``task`` imports; none for a divided stage."""
    opened = () if task.shards() else task.opens()
    return tuple(dict.fromkeys(name for one in opened for name in one.imports))


def imported_by(module: ModuleType) -> Iterator[str]:
    """The module of a stage, and the project's modules that its functions import when they run."""
    yield module.__name__
    for function in vars(module).values():
        if isinstance(function, FunctionType) and function.__module__ == module.__name__:
            for instruction in dis.get_instructions(function):
                if instruction.opname == "IMPORT_NAME" and "pipeline." in instruction.argval:
                    yield instruction.argval


def need_faults(task: StageTask) -> Iterator[str]:
    """A sentence if the stage, or a shard of it, asks for more GPUs than the setting ``gpus``."""
    gpus = task.run_settings.gpus
    one = next(iter(task.shards().values()), task)
    asked = needs(one, gpus)
    if gpus and asked.gpus > gpus:
        yield (
            f"{asked.setting} is {asked.gpus}, and gpus is {gpus}, so stage {task.label} would "
            f"never start; set {asked.setting} to at most {gpus}, or raise gpus"
        )
