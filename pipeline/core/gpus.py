"""The GPUs of this machine that the process may use, found without importing a heavy package.

Input: ``nvidia-smi``, the files of NVIDIA's driver below ``/proc`` and ``/dev``, and
``CUDA_VISIBLE_DEVICES``. Output: one `Gpu` for each device.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sysconfig
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path

GIB = 2**30
CONTEXT_BYTES = GIB // 2  # of a process on a GPU: CUDA context and kernels of its libraries
VISIBLE = "CUDA_VISIBLE_DEVICES"
# Share of the GiB in a device's name that programs can use: an A100 of 80 GB has 79.3, an RTX 4090
# of 24 GB has 23.6.
_USABLE = 0.985
_DRIVER = Path("/proc/driver/nvidia/gpus")  # one folder for each GPU, named by its PCI address
_VERSION = Path("/sys/module/nvidia/version")
_FILES = Path("/dev")
_WSL = "/usr/lib/wsl/lib"  # where Windows puts nvidia-smi, which not every PATH has
_SECONDS = 20.0


@dataclass(frozen=True)
class Gpu:
    """One GPU; ``memory`` is in bytes, None when the driver does not report it.

    ``uuid`` is the device's UUID. If the driver does not report it, it is the PCI address or the
    name of the device's file. It is empty for a GPU that is only described.
    """

    name: str
    memory: int | None
    uuid: str = ""


def driver_version(file: Path = _VERSION) -> str | None:
    """The version of NVIDIA's driver, such as 580.65.06; None if the kernel does not report it."""
    try:
        return file.read_text().strip()
    except (OSError, UnicodeDecodeError):
        return None


def nominal_gpu(gib: float) -> Gpu:
    """A GPU that is sold with ``gib`` GiB of memory, for plans of another machine."""
    return Gpu(f"{gib:g} GB", int(gib * GIB * _USABLE))


def machine_gpus(driver: Path = _DRIVER, files: Path = _FILES) -> list[Gpu]:
    """All GPUs of this machine or container, in the order of their PCI addresses.

    ``nvidia-smi`` is asked first. It alone knows the devices in WSL2, and the devices that Slurm
    leaves to a job. Without its answer the GPUs are read from ``driver``, or else from the device
    files ``nvidia0``, ``nvidia1``, … in ``files``, which exist in containers without the other two.
    """
    tool = shutil.which("nvidia-smi") or shutil.which("nvidia-smi", path=_WSL)
    found = _by_tool(tool) if tool is not None else None
    if found is not None:
        return list(found)
    return _by_driver(driver) or _by_files(files)


def visible_gpus(
    environment: Mapping[str, str] = os.environ, driver: Path = _DRIVER, files: Path = _FILES
) -> list[Gpu]:
    """The GPUs that a process with ``environment`` sees; see `machine_gpus`."""
    return visible(machine_gpus(driver, files), environment.get(VISIBLE))


def visible(gpus: list[Gpu], allotment: str | None) -> list[Gpu]:
    """The GPUs that a value of ``CUDA_VISIBLE_DEVICES`` leaves; None leaves all.

    As in CUDA, the list ends at the first number without a device, and a UUID may be shortened. The
    memory of a part of a GPU (MIG) is unknown.
    """
    if allotment is None:
        return gpus
    left = []
    for name in allotment.split(","):
        name = name.strip()
        if name.isdecimal() and int(name) < len(gpus):
            left.append(gpus[int(name)])
        elif gpus and name.startswith(("GPU-", "MIG-")):
            unknown = Gpu(name, None, name)
            left.append(next((gpu for gpu in gpus if gpu.uuid.startswith(name)), unknown))
        else:
            break
    return left


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


def _by_driver(driver: Path) -> list[Gpu]:
    found = []
    for folder in sorted(driver.iterdir()) if driver.is_dir() else ():
        told = {}
        try:
            text = (folder / "information").read_text(errors="replace")
        except OSError:
            text = ""
        for line in text.splitlines():
            field, _, value = line.partition(":")
            told[field] = value.strip()
        uuid = told.get("GPU UUID", "?")  # of question marks before a program has used the device
        found.append(
            Gpu(told.get("Model") or folder.name, None, folder.name if "?" in uuid else uuid)
        )
    return found


def _by_files(files: Path) -> list[Gpu]:
    numbers = (re.fullmatch(r"nvidia(\d+)", path.name) for path in files.glob("nvidia*"))
    return [
        Gpu(f"nvidia{number}", None, f"nvidia{number}")
        for number in sorted(int(match[1]) for match in numbers if match)
    ]
