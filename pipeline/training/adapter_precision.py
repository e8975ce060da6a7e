"""Adapters of a quantized base stay float32.

TRL 1.16 casts the trainable weights of a model in 4 or 8 bit to bfloat16 when it builds a trainer. AdamW
then writes each update into bfloat16, whose neighboring numbers differ by up to 1/128 of their size. A step
of 1e-5 leaves most weights of .01 and above as they were, and nothing carries the rest over to the next
step. Adapters over a base that is not quantized are float32.

Input: a PEFT model and what builds its trainer. Output: the same trainable weights as before.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from pipeline.training.trl_types import PeftModel


@contextmanager
def keeping_precision(model: PeftModel) -> Iterator[None]:
    """Undo casts of the trainable weights of ``model`` inside the context; they keep their device."""
    kept = [(value, value.data) for _, value in model.named_parameters() if value.requires_grad]
    yield
    for parameter, before in kept:
        if parameter.dtype != before.dtype:
            parameter.data = before.to(parameter.device)
