"""Trainers that SFT, DPO and GRPO share, their arguments, and resumable training.

Input: a configuration block (``sft``, ``dpo`` or ``grpo``). Output: a trainer of TRL. Its arguments
override TRL's defaults that would change results silently: truncation at 1,024 tokens, bf16
autocast on every device, removal of unknown columns, and filtering of NaN losses.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from pipeline.config.policy import Trainer
from pipeline.core.errors import ConfigError, TrainingError
from pipeline.core.input_files import read_json
from pipeline.llm.tokenizer import Tokenizer
from pipeline.training.checkpoints import (
    CHECKPOINTS,
    STATE,
    checkpoint_callback,
    delete_others,
    last_checkpoint,
)
from pipeline.training.collate import StepSortedSampler, accumulation_steps
from pipeline.training.encode import E
from pipeline.training.encoded_file import EncodedFile
from pipeline.training.history import History, history_callback
from pipeline.training.kept_activations import keep_what_fits
from pipeline.training.lean_forward import install_lean_forward
from pipeline.training.lora import load_weights, pick_device
from pipeline.training.trackers import Tracking, guard_trackers, reporting
from pipeline.training.trl_types import PeftModel, TrainerClass, TrainingArguments, TrlTrainer

CHECKPOINTS_PER_RUN = 10  # at least, so that a killed run loses at most a tenth of its steps


@dataclass
class Training:
    """A training run besides its data and settings.

    Checkpoints, and log-probabilities of the reference, are stored below ``checkpoint_dir``.
    """

    seed: int
    checkpoint_dir: Path
    history: History = field(default_factory=History)
    tracking: Tracking | None = None


def shared_arguments(
    settings: Trainer, block: str, training: Training, *, epochs: float, records: int
) -> dict[str, object]:
    """Keyword arguments for SFTConfig, DPOConfig and GRPOConfig.

    ``records`` is the number of training records. Raises ConfigError when the batch sizes do not
    divide or the environment asks for a sharded model, DependencyError for a missing device or
    tracker, and TrainingError when there is no optimizer step.
    """
    refuse_sharding()
    device = pick_device(settings, block)
    accumulation = accumulation_steps(
        settings.batch_size, settings.per_device_batch_size, settings.processes, block
    )
    steps = optimizer_steps(records, settings.batch_size, epochs, block)
    logging_steps = max(1, steps // 200)
    # Every checkpoint closes a logged row, so that a continued run logs the same rows.
    save_steps = max(1, steps // CHECKPOINTS_PER_RUN // logging_steps) * logging_steps
    return {
        "output_dir": str(training.checkpoint_dir / CHECKPOINTS),
        "per_device_train_batch_size": settings.per_device_batch_size,
        # Held-out losses are means over batches, so they would depend on the size of a batch.
        "per_device_eval_batch_size": 1,
        "gradient_accumulation_steps": accumulation,
        "num_train_epochs": epochs,
        "learning_rate": settings.learning_rate,
        "weight_decay": settings.weight_decay,
        "warmup_steps": warmup_steps(settings.warmup_ratio, steps),
        "lr_scheduler_type": settings.scheduler,
        "bf16": settings.dtype == "bfloat16",
        "use_cpu": device == "cpu",
        "gradient_checkpointing": settings.gradient_checkpointing,
        "ddp_find_unused_parameters": False if settings.processes > 1 else None,
        "dataloader_num_workers": 0,
        "dataloader_pin_memory": device == "cuda",
        "remove_unused_columns": False,
        "seed": training.seed,
        "data_seed": training.seed,
        "logging_steps": logging_steps,
        "logging_nan_inf_filter": False,
        "disable_tqdm": True,
        **reporting(training.tracking, training.checkpoint_dir),
        "save_strategy": "steps",
        "save_steps": save_steps,
        "save_total_limit": None,  # `pipeline.training.checkpoints` deletes old ones
    }


def refuse_sharding() -> None:
    """Raise ConfigError when the environment asks accelerate to shard the model.

    Log-probabilities of the reference are computed before accelerate would shard it, and adapters
    and checkpoints are written from the weights of one process.
    """
    from accelerate.utils import parse_flag_from_env

    for name in ("ACCELERATE_USE_FSDP", "ACCELERATE_USE_DEEPSPEED"):
        if parse_flag_from_env(name):
            raise ConfigError(
                f"{name} is set in the environment, which would shard the adapter too; unset it, "
                "and set quantization: 4bit for a base that does not fit on one GPU"
            )


def optimizer_steps(records: int, batch_size: int, epochs: float, block: str) -> int:
    """The number of optimizer steps of a training run; the last batch of an epoch may be smaller.

    Raises TrainingError when there is none.
    """
    steps = math.ceil(epochs * math.ceil(records / batch_size))
    if steps < 1:
        name = "round_epochs" if block == "dpo" else "epochs"
        raise TrainingError(
            f"{block}.{name} is {epochs:g}, so {records} records give no optimizer step and "
            "nothing would be trained; set it above 0"
        )
    return steps


def warmup_steps(ratio: float, steps: int) -> int:
    """The number of steps before the learning rate reaches its maximum; the first has rate 0.

    This is ``ratio * steps``, rounded up. A share below one step gives no warm-up, because a single
    step of warm-up has rate 0 and would only discard a batch. At least the last step is not
    warm-up.
    """
    share = steps * ratio
    return 0 if share < 1 else min(math.ceil(share), steps - 1)


def build_trainer(
    trainer_class: TrainerClass,
    arguments: TrainingArguments,
    model: PeftModel,
    tokenizer: Tokenizer,
    records: EncodedFile[E],
    columns: list[str],
    settings: Trainer,
    block: str,
    training: Training,
    *,
    groups: Sequence[str] = (),
    temperature: float = 1.0,
    **others: object,
) -> TrlTrainer:
    """A trainer over ``columns`` of encoded records, with the lean forward pass.

    ``groups`` are names of ``records`` that belong together (`StepSortedSampler`), ``others``
    arguments of ``trainer_class``. Raises TrainingError when the number of processes differs from
    ``settings.processes``: the batch size was divided by that number, so a launcher that starts
    fewer processes would silently train with a smaller batch.
    """
    if arguments.world_size != settings.processes:
        raise TrainingError(
            f"{block}.processes is {settings.processes}, but {arguments.world_size} joined; start "
            "the stage with steep, which launches the processes"
        )
    trainer: TrlTrainer = sorted_steps(trainer_class, records, settings, training.seed, groups)(
        model=model,
        args=arguments,
        train_dataset=records.dataset.select_columns(columns),
        processing_class=tokenizer,
        callbacks=[history_callback(training.history)],
        **others,
    )
    install_lean_forward(trainer, temperature)
    return trainer


def sorted_steps(
    trainer_class: TrainerClass,
    records: EncodedFile[E],
    settings: Trainer,
    seed: int,
    groups: Sequence[str] = (),
) -> TrainerClass:
    """A subclass of ``trainer_class`` with StepSortedSampler as its training sampler.

    ``groups`` are names of ``records`` that belong together. The adapter keeps its number format
    (`pipeline.training.trainer_args`), and the process trains on one GPU.
    """

    class StepSorted(trainer_class):
        def __init__(self, model: PeftModel, args: TrainingArguments, **arguments: object) -> None:
            # With several visible GPUs, a single process would copy the model to all of them
            # (nn.DataParallel), and train with as many times the batch size.
            args._n_gpu = min(args.n_gpu, 1)
            with keeping_precision(model):
                super().__init__(model=model, args=args, **arguments)
            if settings.gradient_checkpointing and args.device.type == "cuda":
                keep_what_fits(self.model, settings)

        def _get_train_sampler(self, train_dataset: object = None) -> StepSortedSampler:
            return StepSortedSampler(
                records.lengths,
                settings.batch_size,
                seed,
                per_device=settings.per_device_batch_size,
                processes=settings.processes,
                tokens=records.tokens,
                groups=groups,
            )

    StepSorted.__name__ = trainer_class.__name__
    return StepSorted


def train(trainer: TrlTrainer, training: Training) -> None:
    """Train from the last complete checkpoint, or from the beginning; ``trainer`` logs there."""
    from transformers.trainer_callback import PrinterCallback

    trainer.remove_callback(PrinterCallback)  # log.json holds the numbers
    guard_trackers(trainer)
    history, checkpoint_dir = training.history, training.checkpoint_dir
    trainer.add_callback(checkpoint_callback(checkpoint_dir))
    checkpoint = last_checkpoint(checkpoint_dir)
    if trainer.is_world_process_zero():
        delete_others(checkpoint_dir, kept=checkpoint)
    if checkpoint is None:
        trainer.train(resume_from_checkpoint=None)
        return
    state = read_json(checkpoint / STATE)
    history.resume(state)
    if history.steps == state["max_steps"]:
        # Trainer would take one more step when the last epoch is not a whole one.
        load_weights(trainer.accelerator.unwrap_model(trainer.model), checkpoint, "default")
        return
    if "num_tokens" in history.rows[-1]:  # TRL counts from 0 again
        trainer._total_train_tokens = int(history.rows[-1]["num_tokens"])
    trainer.train(resume_from_checkpoint=str(checkpoint))


def on_main(trainer: TrlTrainer, action: Callable[[], None]) -> None:
    """Run ``action`` in the main process while the others wait."""
    if trainer.is_world_process_zero():
        action()
    trainer.accelerator.wait_for_everyone()


# TRL 1.16 casts the trainable weights of a model in 4 or 8 bit to bfloat16 when it builds a
# trainer. AdamW then writes each update into bfloat16, whose neighboring numbers differ by up to
# 1/128 of their size. A step of 1e-5 leaves most weights of .01 and above as they were, and nothing
# carries the rest over to the next step. Adapters over a base that is not quantized are float32.
@contextmanager
def keeping_precision(model: PeftModel) -> Iterator[None]:
    """Undo casts of the trainable weights of ``model`` inside the context; devices are kept."""
    kept = [(value, value.data) for _, value in model.named_parameters() if value.requires_grad]
    yield
    for parameter, before in kept:
        if parameter.dtype != before.dtype:
            parameter.data = before.to(parameter.device)
