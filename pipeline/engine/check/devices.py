"""GPUs: whether the machine has the GPUs that the configuration cannot work without."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from pipeline.config import Config
from pipeline.core.model_shapes import shape_of
from pipeline.engine.check.machine import Machine
from pipeline.engine.opened import Engine, Opened


def required_gpus(settings: Config, opened: Sequence[Opened]) -> list[tuple[str, int]]:
    """The settings that cannot work without GPUs, each with its GPUs on each machine."""
    needs = [(f"gpus is {settings.gpus}", settings.gpus)] if settings.gpus and opened else []
    return list(dict.fromkeys([*needs, *(need for one in opened for need in one.required)]))


def device_faults(settings: Config, opened: Sequence[Opened], machine: Machine) -> Iterator[str]:
    """A sentence for GPUs that are missing."""
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
    for setting, count in needs if present else ():
        if count > present:
            yield (
                f"{setting}, and this machine has {present} that the run may use; lower it, or use "
                f"a machine with {count}"
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
