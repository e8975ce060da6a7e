"""The GPUs that a run may use: the inherited allotment, or those of the machine.

Input: ``CUDA_VISIBLE_DEVICES`` and what the driver lists. Output: names of devices, as that variable has
them (indices, or UUIDs). Nothing heavy is imported.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from importlib.metadata import PackageNotFoundError, version

from pipeline.core.gpus import VISIBLE, machine_gpus

ORDER = "CUDA_DEVICE_ORDER"
BY_ADDRESS = "PCI_BUS_ID"  # the order in which the driver lists devices; by default CUDA puts the fastest first


def allotted(environment: Mapping[str, str] = os.environ) -> tuple[str, ...] | None:
    """The devices of ``CUDA_VISIBLE_DEVICES``, or None when it is not set.

    As CUDA does, the list ends before the first index below 0.
    """
    value = environment.get(VISIBLE)
    if value is None:
        return None
    names: list[str] = []
    for name in (part.strip() for part in value.split(",")):
        if not name or name.startswith("-"):
            break
        names.append(name)
    return tuple(names)


def listed() -> tuple[str, ...]:
    """The UUIDs of the GPUs that this process can reach, in the order of their PCI addresses.

    In a Slurm job these are the job's own, so that index 0 is another device in another job.
    """
    return tuple(gpu.uuid for gpu in machine_gpus())


def torch_for_cpus() -> bool:
    """Whether the installed torch is a build that uses no GPU; it is not imported."""
    try:
        return version("torch").endswith("+cpu")
    except PackageNotFoundError:
        return False


def usable(names: Sequence[str], uuids: Sequence[str]) -> tuple[str, ...]:
    """The names of an allotment that CUDA follows: those before the first index without a device.

    Without ``uuids``, those of the machine, nothing is known and all are returned.
    """
    for place, name in enumerate(names):
        if uuids and name.isdecimal() and int(name) >= len(uuids):
            return tuple(names[:place])
    return tuple(names)


def identity(name: str, uuids: Sequence[str]) -> str:
    """The same text for an index and for the UUID of a device, which may be shortened.

    ``uuids`` are those that the driver lists. Other names, such as those of MIG devices, are unchanged.
    """
    if name.isdecimal():
        return uuids[int(name)] if int(name) < len(uuids) else name
    return next((uuid for uuid in uuids if uuid.startswith(name)), name)
