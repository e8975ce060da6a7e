"""The GPUs of this machine that the process may use; nothing heavy is imported to find them.

Input: ``nvidia-smi``, the files of NVIDIA's driver below ``/proc``, and ``CUDA_VISIBLE_DEVICES``.
Output: one `Gpu` for each visible device.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

GIB = 2**30
CONTEXT_BYTES = GIB // 2  # of a process on a GPU: CUDA context and kernels of its libraries
VISIBLE = "CUDA_VISIBLE_DEVICES"
# Share of the GiB in a device's name that programs can use: an A100 of 80 GB has 79.3, an RTX 4090 of
# 24 GB has 23.6.
_USABLE = 0.985
_DRIVER = Path("/proc/driver/nvidia/gpus")
_SECONDS = 20.0


@dataclass(frozen=True)
class Gpu:
    """One GPU; ``memory`` is in bytes, None when the driver does not tell."""

    name: str
    memory: int | None


def nominal_gpu(gib: float) -> Gpu:
    """A GPU that is sold with ``gib`` GiB of memory, for plans of another machine."""
    return Gpu(f"{gib:g} GB", int(gib * GIB * _USABLE))


def visible_gpus(environment: Mapping[str, str] = os.environ, driver: Path = _DRIVER) -> list[Gpu]:
    """The GPUs that a process with ``environment`` sees; ``driver`` is the driver's folder."""
    found = _by_tool() if driver.is_dir() else []
    if not found and driver.is_dir():
        found = [Gpu(folder.name, None) for folder in sorted(driver.iterdir())]
    return visible(found, environment.get(VISIBLE))


def visible(gpus: list[Gpu], allotment: str | None) -> list[Gpu]:
    """The GPUs that a value of ``CUDA_VISIBLE_DEVICES`` leaves; None leaves all.

    As in CUDA, the list ends at the first number without a device. Devices that are named by UUID
    count, but their memory is unknown.
    """
    if allotment is None:
        return gpus
    left = []
    for name in allotment.split(","):
        name = name.strip()
        if name.isdecimal() and int(name) < len(gpus):
            left.append(gpus[int(name)])
        elif gpus and name.startswith(("GPU-", "MIG-")):
            left.append(Gpu(name, None))
        else:
            break
    return left


def _by_tool() -> list[Gpu]:
    tool = shutil.which("nvidia-smi")
    if tool is None:
        return []
    command = [tool, "--query-gpu=name,memory.total", "--format=csv,noheader,nounits"]
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=_SECONDS, check=False
        )
    except (OSError, subprocess.TimeoutExpired):
        return []
    return parse_table(done.stdout) if done.returncode == 0 else []


def parse_table(text: str) -> list[Gpu]:
    """The GPUs of a table with the columns name and memory in MiB."""
    gpus = []
    for line in text.splitlines():
        name, _, memory = line.rpartition(",")
        memory = memory.strip()
        if name:
            gpus.append(Gpu(name.strip(), int(memory) * 2**20 if memory.isdecimal() else None))
    return gpus
