"""The devices of this machine, as manifests name them; nothing heavy is imported to find them."""

from __future__ import annotations

import os

from pipeline.core.gpus import machine_gpus


def is_gpu(device: str) -> bool:
    """Whether the device of a manifest is a GPU."""
    return bool(device) and not device.startswith("cpu")


def here() -> frozenset[str]:
    """The names of this machine's processors and GPUs."""
    return frozenset({f"cpu ({os.cpu_count()} cores)", *(gpu.name for gpu in machine_gpus())})


def has_gpu() -> bool:
    """Whether this machine has an NVIDIA GPU."""
    return bool(machine_gpus())
