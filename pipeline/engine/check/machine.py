"""The machine for which a run is checked: this one, or a described one."""

from __future__ import annotations

import re
from dataclasses import dataclass

from pipeline.core.errors import InputError
from pipeline.core.gpus import Gpu, compiler_fault, nominal_gpu, visible_gpus


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
