"""The GPUs that a run may use: the inherited allotment, or those of the machine.

Input: ``CUDA_VISIBLE_DEVICES`` and what the driver lists. Output: names of devices, as that variable has
them (indices, or UUIDs). Nothing heavy is imported.
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


def cuda_works() -> bool:
    """Whether torch can compute on a GPU.

    Raises DependencyError when this process is allotted GPUs and CUDA fails there, as with an old driver.
    A build of torch for CPUs computes on the CPU.
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
        f"this process is allotted GPUs ({VISIBLE} is {','.join(devices)}), and torch cannot use them: "
        f"{' '.join(reason.split())}; correct the driver of {platform.node()}, or set {VISIBLE} to an empty "
        "text to compute on the CPU"
    )


def _cuda_error() -> str:
    """What CUDA says when it is started; torch warns only at the first question."""
    import torch

    try:
        torch.cuda.init()  # type: ignore[no-untyped-call]
    except Exception as error:  # noqa: BLE001 - a broken driver raises many types
        return str(error)
    return "torch finds no device"


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
