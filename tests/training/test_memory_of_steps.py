"""The peak of training steps at 8 B parameters, with tensors that have sizes and no content."""

from __future__ import annotations

import weakref
from functools import partial
from typing import Any

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_map_only

from pipeline.config import Lora
from pipeline.core.gpus import CONTEXT_BYTES, GIB
from pipeline.core.model_shapes import PUBLISHED
from pipeline.training.kept_activations import kept_layers
from pipeline.training.lora import new_adapter
from pipeline.training.memory import training_memory

SHAPE = PUBLISHED["meta-llama/Meta-Llama-3-8B-Instruct"]
LORA = Lora(r=8, alpha=32, dropout=0.1)
CPU = torch.device("cpu")


class Live(TorchDispatchMode):
    """The bytes of all storages that are alive, and their maximum."""

    def __init__(self) -> None:
        super().__init__()
        self.now = self.peak = 0
        self.known: set[int] = set()

    def add(self, tensor: torch.Tensor) -> None:
        storage = tensor.untyped_storage()
        key, size = storage._cdata, storage.nbytes()
        if key not in self.known:
            self.known.add(key)
            self.now += size
            self.peak = max(self.peak, self.now)
            weakref.finalize(storage, self.drop, key, size)

    def drop(self, key: int, size: int) -> None:
        self.known.discard(key)
        self.now -= size

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        made = func(*args, **(kwargs or {}))
        tree_map_only(torch.Tensor, self.add, made)
        return made


def policy_of_8b(mode: FakeTensorMode) -> Any:
    """Llama-3-8B in bfloat16 with a new adapter."""
    from transformers import AutoModelForCausalLM, LlamaConfig

    config = LlamaConfig(
        vocab_size=SHAPE.vocabulary, hidden_size=SHAPE.hidden, num_hidden_layers=SHAPE.layers,
        intermediate_size=SHAPE.intermediate, num_attention_heads=SHAPE.heads, num_key_value_heads=8,
        max_position_embeddings=8192, tie_word_embeddings=False,
    )  # fmt: skip
    with torch.device("meta"):
        base = AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16)
    policy = new_adapter(base, LORA, 0).train()
    for module in policy.modules():
        for name, value in list(module._parameters.items()):
            if value is not None:
                sized = FakeTensor(mode, value.data.to("meta"), CPU)
                module._parameters[name] = torch.nn.Parameter(sized, value.requires_grad)
        for name, value in list(module._buffers.items()):
            if value is not None:
                module._buffers[name] = FakeTensor(mode, value.to("meta"), CPU)
    return policy


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
