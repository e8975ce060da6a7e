"""How many training processes start on a machine: those of the settings, or fewer where GPUs are missing.

Each process trains on a GPU of its own. ``device: auto`` lets the machine decide, so a configuration with two
processes for two CPU cores also trains on one GPU, in one process. The examples of an optimizer step stay
``batch_size``: fewer processes accumulate more micro-batches. Losses and gradients are then sums in another
order, as with another ``per_device_batch_size``.
"""

from __future__ import annotations

from pipeline.config.policy import Trainer
from pipeline.config.run import Config


def on_gpus(trainer: Trainer, gpus: int) -> bool:
    """Whether ``trainer`` trains on GPUs where a stage has ``gpus`` of them."""
    return trainer.device == "cuda" or (trainer.device == "auto" and gpus > 0)


def processes_on(trainer: Trainer, gpus: int) -> int:
    """The training processes that start, over all machines, where each machine has ``gpus`` GPUs for them.

    They are ``trainer.processes`` unless ``device`` is ``auto`` and there are fewer GPUs, but at least one. The
    number is then the largest divisor of ``processes`` with a GPU for each process, so that micro-batches still
    fill ``batch_size``. With ``machines`` above 1 or ``shard_base`` it is never lowered: too few GPUs are then
    an error where training starts.
    """
    wanted = trainer.processes
    fixed = trainer.device != "auto" or trainer.machines > 1 or trainer.shard_base
    if fixed or gpus == 0 or gpus >= wanted:
        return wanted
    return max(count for count in range(1, gpus + 1) if wanted % count == 0)


def with_processes_on(settings: Config, gpus: int) -> Config:
    """The settings with the processes that start where a stage has ``gpus`` GPUs, in each training block."""
    blocks = {name: getattr(settings, name) for name in ("sft", "dpo", "grpo")}
    return settings.model_copy(
        update={
            name: trainer.model_copy(update={"processes": processes_on(trainer, gpus)})
            for name, trainer in blocks.items()
            if trainer is not None
        }
    )


def fewer_processes(trainer: Trainer, block: str, gpus: int) -> str:
    """A sentence that fewer processes start than the settings of ``block`` say."""
    count = processes_on(trainer, gpus)
    steps = trainer.batch_size // (trainer.per_device_batch_size * count)
    return (
        f"{block}.processes is {trainer.processes}, and {count} start{'s' * (count == 1)} on {gpus} "
        f"GPU{'s' * (gpus > 1)}; batch_size stays {trainer.batch_size}, in {steps} micro-batches of "
        f"{trainer.per_device_batch_size} in each process"
    )
