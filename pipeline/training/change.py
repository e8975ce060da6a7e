"""What a training run changed: the distance between an adapter before and after it.

Input: a PEFT model before and after training. Output: the norm of the difference of its trained
weights, absolute and relative to the norm before. A run that changed nothing, or that left a weight
that is not finite, is an error. Its policy would otherwise be stored and evaluated as if it had
been trained.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import TYPE_CHECKING

from pipeline.core.errors import TrainingError
from pipeline.training.history import History
from pipeline.training.trl_types import PeftModel

if TYPE_CHECKING:
    import torch


def trained_weights(model: PeftModel) -> dict[str, torch.Tensor]:
    """Copies of the weights that training may change, by name."""
    return {
        name: value.detach().cpu().clone()
        for name, value in model.named_parameters()
        if value.requires_grad
    }


def training_record(
    before: Mapping[str, torch.Tensor], model: PeftModel, history: History, block: str
) -> dict[str, float]:
    """The number of steps, the highest learning rate, and the change of the adapter.

    ``before`` are the `trained_weights` of the parent. ``change`` is the Euclidean norm of the
    difference over all weights, and ``relative_change`` is that norm over the parent's. ``block``
    is the configuration block for error messages. Raises TrainingError when there was no step, the
    learning rate was always 0, a weight is not finite, or no weight changed.
    """
    if history.steps < 1:
        raise TrainingError(f"{block}: training took no optimizer step; train more epochs")
    if history.highest_rate <= 0:
        raise TrainingError(
            f"the learning rate was 0 in all {history.steps} optimizer steps; train more epochs"
        )
    after = trained_weights(model)
    squares, squares_before = 0.0, 0.0
    for name, value in before.items():
        if not bool(after[name].isfinite().all()):
            raise TrainingError(
                f"the weights {name} are not finite after {history.steps} optimizer steps; lower "
                f"{block}.learning_rate, or set {block}.dtype: float32"
            )
        squares += float((after[name].double() - value.double()).square().sum())
        squares_before += float(value.double().square().sum())
    if squares == 0:
        raise TrainingError(
            f"the adapter is equal to its parent's after {history.steps} optimizer steps with a "
            f"learning rate of up to {history.highest_rate:g}; raise {block}.learning_rate"
        )
    change = math.sqrt(squares)
    return {
        "steps": history.steps,
        "highest_learning_rate": history.highest_rate,
        "change": change,
        "relative_change": change / math.sqrt(squares_before) if squares_before else 1.0,
    }
