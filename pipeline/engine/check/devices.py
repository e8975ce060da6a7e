"""The machine for which a run is checked, this one or a described one, and whether its GPUs do."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from pipeline.config import Config
from pipeline.core.errors import InputError
from pipeline.core.gpus import Gpu, compiler_fault, nominal_gpu, visible_gpus
from pipeline.core.model_shapes import shape_of
from pipeline.engine.opened import Engine, Opened


@dataclass(frozen=True)
class Machine:
    """The GPUs of a machine.

    ``compiler_fault`` says why kernels for its GPUs cannot be compiled (`gpus.compiler_fault`).
    ``here`` is false for a machine that is only described. On such a machine packages, models,
    folders and free space are not checked.
    """

    gpus: tuple[Gpu, ...]
    here: bool = True
    compiler_fault: str | None = None


def this_machine() -> Machine:
    """This machine with the GPUs that this process may use."""
    gpus = tuple(visible_gpus())
    fault = compiler_fault() if gpus else None
    return Machine(gpus, compiler_fault=fault)


def described_machine(text: str) -> Machine:
    """The machine of ``8x80``: 8 GPUs of 80 GB. Raises InputError for another form."""
    found = re.fullmatch(r"(\d{1,3})x(\d{1,4}(?:\.\d+)?)", text.strip())
    if found is None:
        raise InputError(f"--machine is {text!r}; expected GPUs and GB of each, such as 8x80")
    count, memory = found.groups()
    return Machine((nominal_gpu(float(memory)),) * int(count), here=False)


def machine_of(described: str | None) -> Machine:
    """The machine that ``--machine`` describes; without a description this one."""
    return this_machine() if described is None else described_machine(described)


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
