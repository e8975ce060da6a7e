"""The peak of training steps at 8 B parameters, with tensors that have sizes and no content."""

from __future__ import annotations

from functools import partial

import pytest

from pipeline.core.gpus import CONTEXT_BYTES, GIB
from pipeline.training.kept_activations import kept_layers
from pipeline.training.memory import training_memory


# Rows and tokens of a micro-batch at the published sizes; a DPO pair has two rows. Without recomputed
# layers the peak is the saved tensors of all layers. ``gib`` limits the memory of a step.
@pytest.mark.slow
@pytest.mark.parametrize(
    ("step", "rows", "length", "kept", "gib"),
    [
        ("SFT", 16, 2500, 0, None),
        ("DPO", 4, 8192, 0, None),
        ("GRPO", 4, 4096, 0, None),
        ("saved tensors", 1, 2048, 32, 75),
        ("some saved tensors", 1, 8192, 19, 75),
    ],
)
def test_the_plan_covers_the_layers_of_a_step_and_is_not_far_above(
    step: str, rows: int, length: int, kept: int, gib: int | None
) -> None:
    import torch

    from tests.training.sized_policy import LORA, SHAPE, FakeTensorMode, Live, policy_of_8b

    mode, live = FakeTensorMode(), Live()
    policy = policy_of_8b(mode)
    policy.gradient_checkpointing_enable({"use_reentrant": False})
    policy.enable_input_require_grads()
    decoder = policy.get_base_model().model
    for layer in decoder.layers[SHAPE.layers - kept :]:
        layer.gradient_checkpointing = False
    for value in policy.parameters():
        live.add(value)
    weights = live.now
    with mode:
        ids_RT = torch.zeros(rows, length, dtype=torch.long)
        with live, torch.autocast("cpu", torch.bfloat16):
            hidden = decoder(input_ids=ids_RT, use_cache=False)[0]
            hidden.sum().backward()
    peak = partial(
        training_memory, SHAPE, rows=rows, length=length, rank=LORA.r, targets=LORA.targets,
        dropout=True,
    )  # fmt: skip
    planned = peak(checkpointing=kept < SHAPE.layers)
    parameters = planned.weights + planned.adapter / 4  # without gradients and moments
    assert weights == pytest.approx(parameters, rel=0.002)
    layers = planned.layer_inputs + planned.layer
    if gib is not None:
        assert kept_layers(peak, SHAPE.layers, gib * GIB) == kept
    if kept < SHAPE.layers:
        layers += max(kept - 1, 0) * planned.layer  # with the gradients of each, so a little more
    assert live.peak - weights <= layers + CONTEXT_BYTES
    assert live.peak - weights > 0.6 * layers
    if gib is not None:
        assert live.peak - weights + planned.weights + planned.adapter + planned.head < gib * GIB
