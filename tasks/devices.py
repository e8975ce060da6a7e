"""The GPUs that a run may use: the inherited allotment, or those of the machine.

Input: ``CUDA_VISIBLE_DEVICES`` and what the driver lists. Output: names of devices, as that variable has
them (indices, or UUIDs). Nothing heavy is imported.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path

VISIBLE = "CUDA_VISIBLE_DEVICES"
_DRIVER = Path("/proc/driver/nvidia/gpus")  # one directory for each GPU, named by its PCI address


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


def listed(driver: Path = _DRIVER) -> tuple[str, ...]:
    """The UUIDs of this machine's GPUs in the order of their PCI addresses; empty without a driver."""
    return tuple(map(_uuid, sorted(driver.glob("*/information"))))


def _uuid(information: Path) -> str:
    for line in information.read_text(errors="replace").splitlines():
        field, _, value = line.partition(":")
        if field == "GPU UUID":
            return value.strip()
    return information.parent.name


def identity(name: str, uuids: Sequence[str]) -> str:
    """The same text for an index and for the UUID of a device, which may be shortened.

    ``uuids`` are those that the driver lists. Other names, such as those of MIG devices, are unchanged.
    """
    if name.isdecimal():
        return uuids[int(name)] if int(name) < len(uuids) else name
    return next((uuid for uuid in uuids if uuid.startswith(name)), name)
