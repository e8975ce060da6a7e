"""GPUs: whether the machine has the GPUs that the configuration cannot work without."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Sequence
from importlib.metadata import PackageNotFoundError, version

from pipeline.config import Config, Trainer
from pipeline.config.machine_choices import processes_on
from pipeline.core.model_shapes import shape_of
from tasks.checks.machine import Machine
from tasks.opened import Engine, Opened, Training

_DRIVERS = {12: 525, 13: 580}  # the first driver for each major version of CUDA


def required_gpus(settings: Config, opened: Sequence[Opened]) -> list[tuple[str, int]]:
    """The settings that cannot work without GPUs, each with its GPUs on each machine."""
    needs = [(f"gpus is {settings.gpus}", settings.gpus)] if settings.gpus and opened else []
    return list(dict.fromkeys([*needs, *(need for one in opened for need in one.required_gpus())]))


def device_faults(settings: Config, opened: Sequence[Opened], machine: Machine) -> Iterator[str]:
    """A sentence for GPUs that are missing, and for settings that need more than ``gpus``."""
    needs = required_gpus(settings, opened)
    present = len(machine.gpus)
    if needs and not present:
        named = ", ".join(setting for setting, _ in needs)
        yield (
            "this machine has no GPU that the run may use, and the configuration needs one "
            f"({named}); run it on a machine with GPUs, after make setup-gpu there, or choose a "
            "configuration for CPUs, such as embedded"
        )
    if needs and machine.compiler_fault:
        yield machine.compiler_fault
    if needs and present:
        yield from _old_driver(machine.driver, torch_runtime())
    for setting, count in needs if present else ():
        if count > present:
            yield (
                f"{setting}, and this machine has {present} that the run may use; lower it, or use "
                f"a machine with {count}"
            )
    for one in opened:
        if isinstance(one, Training):
            yield from _too_many_processes(settings, one.block, one.settings, present)
        elif isinstance(one, Engine) and settings.gpus:
            size = one.settings.tensor_parallel_size
            if settings.gpus < size and (size <= present or not present):
                yield (
                    f"{one.block}.tensor_parallel_size is {size}, and gpus is {settings.gpus}; "
                    "raise gpus, or lower it"
                )


def torch_runtime() -> int | None:
    """The major version of the CUDA runtime that is installed for torch; None without one."""
    for name in ("nvidia-cuda-runtime", "nvidia-cuda-runtime-cu12"):
        try:
            return int(version(name).partition(".")[0])
        except (PackageNotFoundError, ValueError):
            continue
    return None


def _old_driver(driver: str | None, runtime: int | None) -> Iterator[str]:
    least = _DRIVERS.get(runtime or 0)
    major = (driver or "").partition(".")[0]
    if least and major.isdecimal() and int(major) < least and os.environ.get("DRIVER_CHECK") != "0":
        yield (
            f"the NVIDIA driver is {driver}, and CUDA {runtime}, which the installed torch needs, "
            f"works from driver {least} on; update the driver, or set DRIVER_CHECK=0 where a "
            "package of forward compatibility (cuda-compat) is installed"
        )


def _too_many_processes(
    settings: Config, block: str, trainer: Trainer, present: int
) -> Iterator[str]:
    """A sentence when a training starts more processes than its machines have GPUs."""
    here = settings.gpus or present
    if here and processes_on(trainer, here) > here * trainer.machines:
        there = f"gpus is {here}" if settings.gpus else f"this machine has {here}"
        over = f" over {trainer.machines} machines" if trainer.machines > 1 else ""
        more = "raise gpus" if settings.gpus else "use a machine with more"
        yield (
            f"{block}.processes is {trainer.processes}{over}, and {there}; each process trains on "
            f"its own GPU; lower {block}.processes, or {more}"
        )


def division_faults(opened: Iterable[Opened]) -> Iterator[str]:
    """A sentence for each engine whose model cannot be divided over its GPUs."""
    for one in opened:
        size = one.settings.tensor_parallel_size if isinstance(one, Engine) else 1
        shape = shape_of(one.name) if size > 1 else None
        if shape is not None and shape.heads % size:
            yield (
                f"{one.block}.tensor_parallel_size is {size}, and {one.name} has {shape.heads} "
                "attention heads, which it must divide; choose a divisor"
            )
