"""Keep the activations of as many layers as a GPU has room for.

With ``gradient_checkpointing`` the backward pass runs each layer again, which saves memory that
only the longest batches need. Input: the tokens of a batch, and the bytes of a GPU. Output: the
number of layers that keep their activations, so that they do not run again. These are the last
layers, whose activations the backward pass frees before it runs the first layers again. Values and
gradients stay the same.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from pipeline.config.policy import Trainer
from pipeline.core.model_shapes import shape_in
from pipeline.training.lean_forward import FAMILIES
from pipeline.training.memory import TrainingMemory, training_memory
from pipeline.training.trl_types import Batch, Decoder, PeftModel

_USED = 0.95  # of the memory that the process can have; the plan is above the measured peaks


def kept_layers(peak: Callable[..., TrainingMemory], layers: int, limit: float) -> int:
    """How many of ``layers`` keep their activations within ``limit`` bytes.

    ``peak`` is `training_memory` of the batch, without ``checkpointing``.
    """
    none_kept, all_kept = (peak(checkpointing=again).total for again in (True, False))
    if all_kept <= limit:
        return layers
    if none_kept > limit:
        return 0
    # ``none_kept`` has room for one layer, which runs again while no kept layer is left.
    return 1 + int((layers - 1) * (limit - none_kept) / (all_kept - none_kept))


def keep_what_fits(policy: PeftModel, settings: Trainer, limit: float | None = None) -> None:
    """Let each training pass of ``policy`` keep the activations that fit into ``limit`` bytes.

    Without a limit it is what the process holds of its GPU and what is free. Quantized models, and
    models of other types than `FAMILIES`, run all layers again, because the formulas have not been
    compared with their peaks.
    """
    import torch

    model = policy.get_base_model()
    shape = shape_in({**model.config.to_dict(), "architectures": [type(model).__name__]})
    known = model.config.model_type in FAMILIES and settings.quantization == "none"
    if not known or shape is None:
        return
    if limit is None:
        free, _ = torch.cuda.mem_get_info()
        limit = _USED * (free + torch.cuda.memory_reserved())
    lora, layers = policy.peft_config["default"], model.base_model.layers
    peak = partial(
        training_memory,
        shape,
        rank=lora.r,
        targets=sorted(lora.target_modules),
        dropout=lora.lora_dropout > 0,
        dtype=settings.dtype,
        processes=settings.processes,
    )

    def choose(_: Decoder, args: tuple[object, ...], batch: Batch) -> None:
        if not torch.is_grad_enabled():
            return
        rows, length = batch["input_ids"].shape  # one row, if the rows are concatenated
        kept = kept_layers(partial(peak, rows=rows, length=length), len(layers), limit)
        for number, layer in enumerate(layers):
            layer.gradient_checkpointing = number < len(layers) - kept

    model.base_model.register_forward_pre_hook(choose, with_kwargs=True)
