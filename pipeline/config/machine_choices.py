"""Settings that depend on the machine: ``dtype: auto``, and the number of training processes.

``dtype: auto`` is bfloat16 on a GPU, and on a CPU the type in which products of matrices are
faster: with AVX512-BF16 or AMX it is bfloat16, without them float32. A run keeps the types that it
started with (file `DTYPES` of its directory), because another type would give another result.
Fingerprints and manifests have the type that computes. Torch is only imported in a separate
process.

Each training process has its own GPU. A configuration with two processes for two CPU cores also
trains on one GPU, in one process. The examples of an optimizer step stay
``batch_size``: fewer processes accumulate more micro-batches.
"""

from __future__ import annotations

import functools
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from pipeline.config.base import Block
from pipeline.config.policy import Trainer
from pipeline.config.run import Config
from pipeline.core import shipped
from pipeline.core.errors import DependencyError, InputError
from pipeline.core.gpus import torch_for_cpus, visible_gpus
from pipeline.core.input_files import leaves, parse_json, read_json
from pipeline.core.process_variables import kernel_variables, thread_variables

Dtype = Literal["float32", "bfloat16"]
Seconds = Mapping[Dtype, float]
AUTO = "auto"
DTYPES = "dtypes.json"  # in the run's directory: the types by the name of the setting
_NAMES: tuple[Dtype, ...] = ("float32", "bfloat16")
# Tokens, width, and width of the MLP: for the embedder of the embedded run, and for its policy.
_PRODUCTS = ((512, 384, 1536), (1024, 160, 448))
_REPEATS = 6  # about 50 ms for all products; the first of each is a warm-up


@dataclass(frozen=True)
class Resolved:
    """A configuration without ``auto``; ``dtypes`` has the types that replaced ``auto``."""

    settings: Config
    dtypes: Mapping[str, Dtype]


@functools.cache
def measured_seconds() -> Seconds:
    """Seconds of the same products in each type, on one thread of this machine's processor.

    Raises DependencyError when torch cannot compute them.
    """
    environment = {
        **os.environ,
        **thread_variables(1, os.environ),
        **kernel_variables(),
        **({"PYTHONSAFEPATH": "1"} if shipped.INSTALLED else {}),
    }
    command = [sys.executable, "-m", "pipeline.config.machine_choices"]
    done = subprocess.run(
        command, env=environment, capture_output=True, text=True, stdin=subprocess.DEVNULL
    )
    try:
        seconds: Seconds = parse_json(done.stdout, "torch")
    except InputError:
        reason = (done.stderr.strip().splitlines() or [f"exit status {done.returncode}"])[-1]
        raise DependencyError(
            f"dtype is auto, and torch could not time the types of this processor ({reason}); set "
            "each dtype to float32 or bfloat16"
        ) from None
    return seconds


def resolve_dtypes(
    settings: Config,
    *,
    gpus: bool | None = None,
    seconds: Callable[[], Seconds] = measured_seconds,
) -> Resolved:
    """The configuration with the types of its run, or of this machine if the run has no types yet.

    ``gpus`` says whether there are GPUs; None: as on this machine. Raises InputError when the run's
    file is damaged, and every error of ``seconds``.
    """
    values = dict(leaves(settings.model_dump(mode="json")))
    names = [name for name, value in values.items() if name.endswith(".dtype") and value == AUTO]
    dtypes: dict[str, Dtype] = {}
    kept = read_dtypes(settings.run_dir / DTYPES) if names else {}
    for name in names:
        block = name.removesuffix(".dtype")
        # Settings of a round hold only what differs from the block of the run.
        device = values.get(f"{block}.device", AUTO)  # training has no setting of its device
        if name in kept:
            dtypes[name] = kept[name]
        elif device == "cuda" or (device == "auto" and _has_gpus(settings, gpus)):
            dtypes[name] = "bfloat16"
        else:
            times = seconds()
            dtypes[name] = min(_NAMES, key=lambda dtype: times[dtype])
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
            None,
            f"expected {' or '.join(_NAMES)} for every setting; correct it, or remove the file, "
            "so that the types of this machine are taken",
        )
    return kept


def _has_gpus(settings: Config, gpus: bool | None) -> bool:
    if gpus is None:
        return settings.gpus > 0 or bool(not torch_for_cpus() and visible_gpus())
    return gpus


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


def _time_products() -> dict[Dtype, float]:
    """The shortest of several alternating repeats, summed over the products."""
    import torch

    torch.set_num_threads(1)
    total = dict.fromkeys(_NAMES, 0.0)
    for tokens, width, inner in _PRODUCTS:
        factors = {
            name: (
                torch.ones(tokens, width, dtype=getattr(torch, name)),
                torch.ones(width, inner, dtype=getattr(torch, name)),
            )
            for name in _NAMES
        }
        seconds: dict[Dtype, list[float]] = {name: [] for name in _NAMES}
        for _ in range(_REPEATS):
            for name, (left, right) in factors.items():
                started = time.thread_time()  # CPU time, which other programs do not change
                left @ right
                seconds[name].append(time.thread_time() - started)
        for name in _NAMES:
            total[name] += min(seconds[name][1:])
    return total


def processes_on(trainer: Trainer, gpus: int) -> int:
    """The training processes that start on all machines if each machine has ``gpus`` GPUs.

    They are ``trainer.processes`` unless there are fewer GPUs, but at least one. The number is then
    the largest divisor of ``processes`` with a GPU for each process, so that micro-batches still
    fill ``batch_size``. With ``machines`` above 1 or ``shard_base`` it
    is never lowered: with too few GPUs training then fails at its start.
    """
    wanted = trainer.processes
    fixed = trainer.machines > 1 or trainer.shard_base
    if fixed or gpus == 0 or gpus >= wanted:
        return wanted
    return max(count for count in range(1, gpus + 1) if wanted % count == 0)


def with_processes_on(settings: Config, gpus: int) -> Config:
    """The settings with, in each training block, the processes that start with ``gpus`` GPUs."""
    blocks = {name: getattr(settings, name) for name in ("sft", "dpo", "grpo")}
    return settings.model_copy(
        update={
            name: trainer.model_copy(update={"processes": processes_on(trainer, gpus)})
            for name, trainer in blocks.items()
            if trainer is not None
        }
    )


def fewer_processes(trainer: Trainer, block: str, gpus: int) -> str:
    """A message that fewer processes start than the settings of ``block`` ask for."""
    count = processes_on(trainer, gpus)
    steps = trainer.batch_size // (trainer.per_device_batch_size * count)
    return (
        f"{block}.processes is {trainer.processes}, and {count} start{'s' * (count == 1)} on "
        f"{gpus} GPU{'s' * (gpus > 1)}; batch_size stays {trainer.batch_size}, in {steps} "
        f"micro-batches of {trainer.per_device_batch_size} in each process"
    )


if __name__ == "__main__":
    print(json.dumps(_time_products()))
