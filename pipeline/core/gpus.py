"""The GPUs of this machine, and the GPUs that a process may use.

Input: ``nvidia-smi``, else the device files of NVIDIA's driver, and ``CUDA_VISIBLE_DEVICES``.
Output: one `Gpu` for each device, or names as in that variable (indices, or UUIDs). Only
`cuda_works` imports a heavy package.
"""

from __future__ import annotations

import os
import platform
import re
import shutil
import subprocess
import sysconfig
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from itertools import takewhile
from pathlib import Path

from pipeline.core.errors import DependencyError

GIB = 2**30
CONTEXT_BYTES = GIB // 2  # of a process on a GPU: CUDA context and kernels of its libraries
VISIBLE = "CUDA_VISIBLE_DEVICES"
ORDER = "CUDA_DEVICE_ORDER"
# The order in which the driver lists devices. By default CUDA puts the fastest first.
BY_ADDRESS = "PCI_BUS_ID"
# Share of the GiB in a device's name that programs can use: an A100 of 80 GB has 79.3, an RTX 4090
# of 24 GB has 23.6.
_USABLE = 0.985
_FILES = Path("/dev")
_WSL = "/usr/lib/wsl/lib"  # where Windows puts nvidia-smi, which not every PATH has
_SECONDS = 20.0


@dataclass(frozen=True)
class Gpu:
    """One GPU; ``memory`` is in bytes, None when the driver does not report it.

    ``uuid`` is the device's UUID, or the name of its file if the driver does not report it. It is
    empty for a GPU that is only described.
    """

    name: str
    memory: int | None
    uuid: str = ""


def nominal_gpu(gib: float) -> Gpu:
    """A GPU that is sold with ``gib`` GiB of memory, for plans of another machine."""
    return Gpu(f"{gib:g} GB", int(gib * GIB * _USABLE))


def machine_gpus(files: Path = _FILES) -> list[Gpu]:
    """All GPUs of this machine or container, in the order of their PCI addresses.

    ``nvidia-smi`` is asked first. It alone knows the devices in WSL2, and the devices that Slurm
    leaves to a job. Without its answer, as in some containers, the device files ``nvidia0``,
    ``nvidia1``, … in ``files`` count.
    """
    tool = shutil.which("nvidia-smi") or shutil.which("nvidia-smi", path=_WSL)
    found = _by_tool(tool) if tool is not None else None
    return _by_files(files) if found is None else list(found)


def visible_gpus(environment: Mapping[str, str] = os.environ, files: Path = _FILES) -> list[Gpu]:
    """The GPUs that a process with ``environment`` sees; see `machine_gpus`."""
    return visible(machine_gpus(files), allotted(environment))


def visible(gpus: list[Gpu], names: Sequence[str] | None) -> list[Gpu]:
    """The GPUs that an allotment leaves (`allotted`), as CUDA reads it; None leaves all.

    The memory of a part of a GPU (MIG) is unknown.
    """
    if names is None or not gpus:
        return gpus
    of_uuid = {gpu.uuid: gpu for gpu in gpus}
    left = [identity(name, list(of_uuid)) for name in usable(names, list(of_uuid))]
    return [of_uuid.get(uuid, Gpu(uuid, None, uuid)) for uuid in left]


def compiler_fault(include: str | None = None) -> str | None:
    """What is missing for Triton to build a kernel's launcher at its first run; None if nothing is.

    ``include`` is the folder of Python's headers, by default the folder of this Python.
    """
    if not (os.environ.get("CC") or shutil.which("gcc") or shutil.which("clang")):
        return (
            "kernels on GPUs are compiled when they first run, and there is no C compiler (gcc or "
            "clang); install gcc, or set CC"
        )
    header = Path(include or sysconfig.get_path("include")) / "Python.h"
    if not header.is_file():
        return (
            f"kernels on GPUs are compiled when they first run, and {header} is missing; install "
            "the headers of this Python, such as the package python3-dev"
        )
    return None


# Cached, because the tool takes seconds on some machines and always gives the same answer.
@cache
def _by_tool(tool: str) -> tuple[Gpu, ...] | None:
    """The GPUs that ``nvidia-smi`` lists; None when it fails, as without a driver."""
    command = [tool, "--query-gpu=name,memory.total,uuid", "--format=csv,noheader,nounits"]
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=_SECONDS, check=False
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    return tuple(parse_table(done.stdout)) if done.returncode == 0 else None


def parse_table(text: str) -> list[Gpu]:
    """The GPUs of a table with the columns name, memory in MiB, and UUID."""
    gpus = []
    for line in text.splitlines():
        cells = [cell.strip() for cell in line.rsplit(",", 2)]
        if len(cells) == 3:
            name, memory, uuid = cells
            gpus.append(Gpu(name, int(memory) * 2**20 if memory.isdecimal() else None, uuid))
    return gpus


def _by_files(files: Path) -> list[Gpu]:
    numbers = (re.fullmatch(r"nvidia(\d+)", path.name) for path in files.glob("nvidia*"))
    return [
        Gpu(f"nvidia{number}", None, f"nvidia{number}")
        for number in sorted(int(match[1]) for match in numbers if match)
    ]


def allotted(environment: Mapping[str, str] = os.environ) -> tuple[str, ...] | None:
    """The devices of ``CUDA_VISIBLE_DEVICES``, or None when it is not set.

    As CUDA does, the list ends before the first index below 0.
    """
    value = environment.get(VISIBLE)
    if value is None:
        return None
    names = (part.strip() for part in value.split(","))
    return tuple(takewhile(lambda name: name and not name.startswith("-"), names))


def listed() -> tuple[str, ...]:
    """The UUIDs of the GPUs that this process can reach, in the order of their PCI addresses.

    In a Slurm job only the job's GPUs are listed, so index 0 differs between jobs.
    """
    return tuple(gpu.uuid for gpu in machine_gpus())


@cache
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
        f"{VISIBLE} is {','.join(devices)}, but torch cannot use these GPUs: "
        f"{' '.join(reason.split())}; correct the driver of {platform.node()}, or set "
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
