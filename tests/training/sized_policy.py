"""A policy of 8 B parameters whose tensors have sizes and no content, and the bytes of living tensors."""

from __future__ import annotations

import weakref
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_map_only

from pipeline.config import Lora
from pipeline.core.model_shapes import PUBLISHED
from pipeline.training.lora import new_adapter

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
