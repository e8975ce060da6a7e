"""The devices of this machine, as manifests name them; nothing heavy is imported to find them."""

from __future__ import annotations

import os
from pathlib import Path

_GPUS = Path("/proc/driver/nvidia/gpus")


def is_gpu(device: str) -> bool:
    """Whether the device of a manifest is a GPU."""
    return bool(device) and not device.startswith("cpu")


def here(gpus: Path = _GPUS) -> frozenset[str]:
    """The names of this machine's processors and GPUs."""
    names = {f"cpu ({os.cpu_count()} cores)"}
    for path in gpus.glob("*/information"):
        for line in path.read_text(errors="replace").splitlines():
            field, _, value = line.partition(":")
            if field == "Model":
                names.add(value.strip())
    return frozenset(names)


def has_gpu(gpus: Path = _GPUS) -> bool:
    """Whether this machine has an NVIDIA GPU."""
    return gpus.is_dir() and any(gpus.iterdir())
