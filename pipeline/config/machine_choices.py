"""Settings that depend on the machine: ``dtype: auto``, and the number of training processes.

``dtype: auto`` is bfloat16 on a GPU and on a CPU that multiplies matrices faster in it, else
float32. By measurements (docs/log.md) these are AMD's processors with AVX512-BF16, for an engine
also with AVX-512 alone, and Intel's with AMX, which the engine does not use. Without AMX, Intel's
multiply half as fast in bfloat16 as in float32. A run keeps the
types that it started with (file `DTYPES` of its directory), because another type would give another
result. Fingerprints and manifests have the type that computes.

Each training process has its own GPU. A configuration with two processes for two CPU cores also
trains on one GPU, in one process. The examples of an optimizer step stay
``batch_size``: fewer processes accumulate more micro-batches.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from pipeline.config.base import Block
from pipeline.config.policy import Trainer
from pipeline.config.run import Config
from pipeline.core.errors import InputError
from pipeline.core.gpus import torch_for_cpus, visible_gpus
from pipeline.core.input_files import leaves, read_json

Dtype = Literal["float32", "bfloat16"]
AUTO = "auto"
DTYPES = "dtypes.json"  # in the run's directory: the types by the name of the setting
_NAMES: tuple[Dtype, ...] = ("float32", "bfloat16")
_CPU_INFO = Path("/proc/cpuinfo")


@dataclass(frozen=True)
class Resolved:
    """A configuration without ``auto``; ``dtypes`` has the types that replaced ``auto``."""

    settings: Config
    dtypes: Mapping[str, Dtype]


def dtype_of_cpu(engine: bool = False, info: Path = _CPU_INFO) -> Dtype:
    """The type in which this machine's processor is faster: in an engine, or in other models."""
    words = set(info.read_text().split()) if info.is_file() else set()
    if "GenuineIntel" in words:
        fast = not engine and "amx_bf16" in words
    else:
        fast = ("avx512f" if engine else "avx512_bf16") in words
    return "bfloat16" if fast else "float32"


def resolve_dtypes(
    settings: Config,
    *,
    gpus: bool | None = None,
    cpu: Callable[[bool], Dtype] = dtype_of_cpu,
) -> Resolved:
    """The configuration with the types of its run, or of this machine if the run has no types yet.

    ``gpus`` says whether there are GPUs; None: as on this machine. Raises InputError when the run's
    file is damaged.
    """
    values = dict(leaves(settings.model_dump(mode="json")))
    names = [name for name, value in values.items() if name.endswith(".dtype") and value == AUTO]
    dtypes: dict[str, Dtype] = {}
    kept = read_dtypes(settings.run_dir / DTYPES) if names else {}
    if gpus is None and not kept.keys() >= set(names):
        gpus = settings.gpus > 0 or bool(not torch_for_cpus() and visible_gpus())
    for name in names:
        block = name.removesuffix(".dtype")
        # Settings of a round hold only what differs from the block of the run.
        device = values.get(f"{block}.device", AUTO)  # training has no setting of its device
        if name in kept:
            dtypes[name] = kept[name]
        elif device == "cuda" or (device == "auto" and gpus):
            dtypes[name] = "bfloat16"
        else:
            dtypes[name] = cpu(block.rpartition(".")[2] == "engine")
    return Resolved(_replaced(settings, dtypes), dtypes)


def read_dtypes(path: Path) -> dict[str, Dtype]:
    """The types that a run started with, empty before its start.

    Raises InputError when the file is damaged.
    """
    if not path.is_file():
        return {}
    kept: dict[str, Dtype] = read_json(path)
    if not set(map(str, kept.values())) <= set(_NAMES):
        raise InputError.at(
            path,
            f"expected {' or '.join(_NAMES)} for every setting; correct it, or remove the file to "
            "take the types of this machine",
        )
    return kept


def _replaced(value: Any, dtypes: Mapping[str, Dtype], name: str = "") -> Any:
    """``value`` with ``dtypes``, by dotted name, filled in; unchanged parts are not copied."""
    if name in dtypes:
        return dtypes[name]
    if not isinstance(value, Block | dict):
        return value
    below = dict(value)  # of a block its fields
    changed = {
        key: new
        for key, old in below.items()
        if (new := _replaced(old, dtypes, f"{name}.{key}".lstrip("."))) is not old
    }
    if not changed:
        return value
    return value.model_copy(update=changed) if isinstance(value, Block) else {**below, **changed}


def processes_on(trainer: Trainer, gpus: int) -> int:
    """The training processes that start on ``gpus`` GPUs.

    They are ``trainer.processes`` unless there are fewer GPUs, but at least one. The number is then
    the largest divisor of ``processes`` with a GPU for each process, so that micro-batches still
    fill ``batch_size``.
    """
    wanted = trainer.processes
    if gpus == 0 or gpus >= wanted:
        return wanted
    return max(count for count in range(1, gpus + 1) if wanted % count == 0)


def fewer_processes(trainer: Trainer, block: str, gpus: int) -> str:
    """A message that fewer processes start than the settings of ``block`` ask for."""
    count = processes_on(trainer, gpus)
    steps = trainer.batch_size // (trainer.per_device_batch_size * count)
    return (
        f"{block}.processes is {trainer.processes}, and {count} start{'s' * (count == 1)} on "
        f"{gpus} GPU{'s' * (gpus > 1)}; batch_size stays {trainer.batch_size}, in {steps} "
        f"micro-batches of {trainer.per_device_batch_size} in each process"
    )
