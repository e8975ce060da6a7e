"""The machine for which a run is checked: this one, or a described one."""

from __future__ import annotations

import os
import re
from dataclasses import dataclass

from pipeline.core.errors import InputError
from pipeline.core.gpus import (
    GIB,
    Gpu,
    compiler_fault,
    nominal_gpu,
    visible_gpus,
)


@dataclass(frozen=True)
class Machine:
    """GPUs, and RAM in bytes; None is unknown.

    ``compiler_fault`` says why kernels for its GPUs cannot be compiled (`gpus.compiler_fault`).
    ``here`` is false for a machine that is only described. On such a machine packages, models,
    folders and free space are not checked.
    """

    gpus: tuple[Gpu, ...]
    ram: float | None = None
    here: bool = True
    compiler_fault: str | None = None


def this_machine() -> Machine:
    """This machine with the GPUs that this process may use."""
    try:
        ram = float(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"))
    except (OSError, ValueError):
        ram = None
    gpus = tuple(visible_gpus())
    fault = compiler_fault() if gpus else None
    return Machine(gpus, ram, compiler_fault=fault)


def described_machine(text: str) -> Machine:
    """The machine of ``8x80`` (8 GPUs of 80 GB) or ``8x80,1000`` (with 1,000 GiB of RAM).

    Raises InputError for another form.
    """
    found = re.fullmatch(r"(\d{1,3})x(\d{1,4}(?:\.\d+)?)(?:,(\d{1,6}))?", text.strip())
    if found is None:
        raise InputError(
            f"--machine is {text!r}; expected GPUs and GB of each, such as 8x80, and after a comma "
            "the GiB of RAM, such as 8x80,1000"
        )
    count, memory, ram = found.groups()
    gpus = (nominal_gpu(float(memory)),) * int(count)
    return Machine(gpus, float(ram) * GIB if ram else None, here=False)


def machine_of(described: str | None) -> Machine:
    """The machine that ``--machine`` describes; without a description this one."""
    return this_machine() if described is None else described_machine(described)
