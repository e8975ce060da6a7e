"""The GPUs that a run may use: the inherited allotment, or the machine's GPUs.

Input: ``CUDA_VISIBLE_DEVICES`` and the driver's list. Output: names of devices, as in that variable
(indices, or UUIDs). No heavy package is imported.
"""

from __future__ import annotations

import os
import platform
import warnings
from collections.abc import Mapping, Sequence
from importlib.metadata import PackageNotFoundError, version

from pipeline.core.errors import DependencyError
from pipeline.core.gpus import VISIBLE, machine_gpus

ORDER = "CUDA_DEVICE_ORDER"
# The order in which the driver lists devices. By default CUDA puts the fastest first.
BY_ADDRESS = "PCI_BUS_ID"


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

    In a Slurm job only the job's GPUs are listed, so index 0 differs between jobs.
    """
    return tuple(gpu.uuid for gpu in machine_gpus())


def torch_for_cpus() -> bool:
    """Whether the installed torch is a build for CPUs; torch is not imported."""
    try:
        return version("torch").endswith("+cpu")
    except PackageNotFoundError:
        return False


def cuda_works() -> bool:
    """Whether torch can compute on a GPU.

    Raises DependencyError when this process is allotted GPUs and CUDA fails there, as with an old
    driver. A build of torch for CPUs computes on the CPU.
    """
    import torch

    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        if torch.cuda.is_available():
            return True
    devices = allotted()
    if not devices or torch.version.cuda is None:
        return False
    reason = " ".join(str(warning.message) for warning in told) or _cuda_error()
    raise DependencyError(
        f"this process is allotted GPUs ({VISIBLE} is {','.join(devices)}), and torch cannot use "
        f"them: {' '.join(reason.split())}; correct the driver of {platform.node()}, or set "
        f"{VISIBLE} to an empty text to compute on the CPU"
    )


def _cuda_error() -> str:
    """CUDA's message at its start; torch warns only at the first call."""
    import torch

    try:
        torch.cuda.init()  # type: ignore[no-untyped-call]
    except Exception as error:  # noqa: BLE001 - a broken driver raises many types
        return str(error)
    return "torch finds no device"


def usable(names: Sequence[str], uuids: Sequence[str]) -> tuple[str, ...]:
    """The names of an allotment that CUDA follows: it stops at the first index without a device.

    ``uuids`` are the machine's devices; without them all names are returned.
    """
    for place, name in enumerate(names):
        if uuids and name.isdecimal() and int(name) >= len(uuids):
            return tuple(names[:place])
    return tuple(names)


def identity(name: str, uuids: Sequence[str]) -> str:
    """The same text for an index and for the UUID of a device, which may be shortened.

    ``uuids`` are the UUIDs that the driver lists. Other names, such as the names of MIG devices,
    are unchanged.
    """
    if name.isdecimal():
        return uuids[int(name)] if int(name) < len(uuids) else name
    return next((uuid for uuid in uuids if uuid.startswith(name)), name)
