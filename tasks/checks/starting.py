"""The checks of a run that is about to start: those of `steep check`, of the stages that are to run."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from pathlib import Path

from pipeline.core.errors import SteepError
from tasks.base import StageTask
from tasks.checks.collect import Checked, check_stages
from tasks.checks.machine import Machine, this_machine
from tasks.checks.uses import plain, stage_names
from tasks.needs import shards_of
from tasks.planning.memory import MemoryPlan, gib

_HOUR = 3600


class RunRefused(SteepError, RuntimeError):
    """A run has faults and was not started; the message has a line for each of them."""


def check_start(
    tasks: Collection[StageTask], todo: Sequence[StageTask], machine: Machine | None = None
) -> Checked:
    """Check the stages of ``todo``; ``tasks`` has the complete ones of the run too.

    A machine that is not given is this one. Raises RunRefused.
    """
    names = _loading(todo)
    held = _held_bytes([task for task in tasks if plain([task.stage]) & plain(names)])
    checked = check_stages(todo[-1].run_settings, names, machine or this_machine(), held=held)
    if checked.faults:
        raise RunRefused("\n".join(checked.faults))
    return checked


def check_with(error: SteepError, task: StageTask) -> None:
    """Check all stages of ``task``, whose state could not be told because of ``error``.

    Raises RunRefused when something else is wrong too. Its message then has ``error`` first, unless a
    fault is about the same file.
    """
    checked = check_stages(task.run_settings, stage_names(task), this_machine())
    own, *rest = str(error).splitlines() or [""]
    about = own.partition(": ")[0]
    others = [fault for fault in checked.faults if fault != own]
    first = [] if any(fault.startswith(f"{about}: ") for fault in others) else [own]
    if others:
        raise RunRefused("\n".join([*first, *rest, *others])) from None


def _loading(todo: Sequence[StageTask]) -> list[str]:
    """The stages that do their own work; one that joins the outputs of its shards loads no model."""
    return list(dict.fromkeys(task.stage for task in todo if not shards_of(task)))


def _held_bytes(tasks: Collection[StageTask]) -> float:
    """Bytes of the outputs and checkpoints of stages, and of the answers and vectors in the caches."""
    folders = [
        path for task in tasks for path in (task.directory, task.store.checkpoint_dir(task.key))
    ]
    held = sum(_size(file) for folder in folders for file in folder.rglob("*"))
    caches = {Path(task.settings.cache_dir) for task in tasks}
    return held + sum(_size(file) for folder in caches for file in folder.glob("*.sqlite"))


def _size(path: Path) -> float:
    try:
        return path.stat().st_size if path.is_file() else 0.0
    except OSError:  # removed by another process
        return 0.0


def plan_lines(checked: Checked) -> list[str]:
    """The plan of a run without faults, in a few lines: memory of GPUs and host, disk, GPU hours."""
    plan = checked.plan
    if plan is None or not plan.stages:
        return []
    lines = [f"{_devices(plan)}RAM at most {_most_ram(plan)}, disk about {gib(plan.disk)} GiB"]
    seconds = sum((checked.seconds or {}).values())
    if seconds:
        lines.append(f"about {seconds / _HOUR:,.1f} GPU hours, computed and not measured")
    for name, size in checked.downloads:
        amount = "of unknown size" if size is None else f"about {gib(size)} GiB"
        lines.append(f"will be fetched from the hub: {name} ({amount})")
    return lines


def _devices(plan: MemoryPlan) -> str:
    largest = max(plan.stages, key=lambda stage: stage.device_bytes)
    if plan.gpu is None or not largest.device:
        return "no GPU; "
    of = "" if plan.gpu.memory is None else f" of {gib(plan.gpu.memory)}"
    most = max(stage.gpus for stage in plan.stages)
    return f"{most} {'GPU' if most == 1 else 'GPUs'}, at most {gib(largest.device_bytes)} GiB{of} ({largest.stage}); "


def _most_ram(plan: MemoryPlan) -> str:
    largest = max(plan.stages, key=lambda stage: stage.ram)
    return f"{gib(largest.ram)} GiB ({largest.stage})"
