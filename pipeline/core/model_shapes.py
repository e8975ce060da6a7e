"""Shapes of transformer models: layers, widths, heads, and the numbers of parameters.

Memory and time of a model follow from its shape. Input: a model's ``config.json``, or the name of a
published model, whose shape is in ``model_shapes.toml``. Output: a `ModelShape`. No weights are
read and nothing is downloaded.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pipeline.core.errors import InputError
from pipeline.core.input_files import read_json
from pipeline.core.model_files import local_directory

CONFIG = "config.json"
DTYPE_BYTES = {"float32": 4, "bfloat16": 2, "float16": 2}
# What the published files of a type leave to the defaults of transformers, whose import would take
# seconds here.
_LEFT_OUT: Mapping[str, Mapping[str, Any]] = {
    "gemma2": {"tie_word_embeddings": True},
    "gemma3_text": {
        "num_attention_heads": 8, "num_key_value_heads": 4, "head_dim": 256,
        "vocab_size": 262_208, "max_position_embeddings": 131_072, "tie_word_embeddings": True,
    },
}  # fmt: skip
# The fields with the number of experts, as Qwen3-MoE, gpt-oss, DeepSeek and ERNIE name them.
_EXPERTS = re.compile(r"(moe_)?(num|n)_(local_|routed_)?experts")


@dataclass(frozen=True)
class ModelShape:
    """The shape of a causal language model, or of an encoder such as BERT.

    ``hidden`` is h, the width of a layer; ``intermediate`` is i, the width of its MLP; ``kv_heads``
    is the number of heads of keys and values, which is below ``heads`` with grouped-query
    attention. ``positions`` is the longest sequence in tokens.
    """

    layers: int
    hidden: int
    heads: int
    kv_heads: int
    intermediate: int
    vocabulary: int
    positions: int
    head_size: int
    tied: bool = False  # whether input and output embeddings are one matrix
    attention_bias: bool = False  # of the projections of queries, keys and values
    encoder: bool = False

    @property
    def query_width(self) -> int:
        """Width of all queries of a token."""
        return self.heads * self.head_size

    @property
    def kv_width(self) -> int:
        """Width of all keys of a token, which is also the width of its values."""
        return self.kv_heads * self.head_size

    @property
    def linear_parameters(self) -> int:
        """Weights of the projections of all layers, which quantization and LoRA apply to.

        A language model has q, k, v, o and a gated MLP of three matrices; an encoder has two.
        """
        attention = self.hidden * (2 * self.query_width + 2 * self.kv_width)
        mlp = (2 if self.encoder else 3) * self.hidden * self.intermediate
        return self.layers * (attention + mlp)

    @property
    def other_parameters(self) -> int:
        """Embeddings, output matrix, norms and biases."""
        h, biases = self.hidden, self.query_width + 2 * self.kv_width
        if self.encoder:
            embeddings = (self.vocabulary + self.positions + 2 + 2) * h  # with types and their norm
            per_layer = biases + h + self.intermediate + h + 4 * h
            return embeddings + self.layers * per_layer + h * h + h  # with a pooler
        matrices = 1 if self.tied else 2
        per_layer = 2 * h + (biases if self.attention_bias else 0)
        return matrices * self.vocabulary * h + self.layers * per_layer + h

    @property
    def parameters(self) -> int:
        """All weights of the model."""
        return self.linear_parameters + self.other_parameters

    def width(self, module: str) -> tuple[int, int] | None:
        """Input and output width of a projection, such as ``q_proj``; None for other modules."""
        h, i = self.hidden, self.intermediate
        return {
            "q_proj": (h, self.query_width),
            "k_proj": (h, self.kv_width),
            "v_proj": (h, self.kv_width),
            "o_proj": (self.query_width, h),
            "gate_proj": (h, i),
            "up_proj": (h, i),
            "down_proj": (i, h),
        }.get(module)

    def lora_parameters(self, rank: int, targets: Sequence[str]) -> int:
        """Weights of a LoRA adapter: rank × (input + output width), over all targets and layers."""
        widths = [self.width(target) for target in targets]
        return self.layers * sum(rank * sum(width) for width in widths if width is not None)


PUBLISHED: Mapping[str, ModelShape] = {
    name: ModelShape(**table)
    for name, table in tomllib.loads(
        Path(__file__).with_suffix(".toml").read_text(encoding="utf-8")
    ).items()
}


def shape_of(name: str) -> ModelShape | None:
    """The shape of a model on this machine, else of the published model of that name, else None.

    ``name`` is a directory, a hub name, or ``package:NAME`` of an installed package. Raises
    InputError when a ``config.json`` of this machine is damaged.
    """
    directory = local_directory(name)
    if directory is None or not (file := directory / CONFIG).is_file():
        return PUBLISHED.get(name)
    values = read_json(file)
    try:
        return shape_in(values)
    except (TypeError, ValueError):
        raise InputError.at(file, "the sizes of the model are not numbers") from None


def shape_in(values: Mapping[str, Any]) -> ModelShape | None:
    """The shape in the values of a ``config.json``; None when they lack a field of the usual names.

    Of a model that also reads images, it is the shape of the language model alone. Layers with a
    sliding window count as full ones, and norms of queries and keys (.01 % of the weights) are left
    out. A mixture of experts has many times the weights of a model of its other sizes, and each
    family counts and sizes its experts by other names: None too. Raises TypeError or ValueError
    when a size is not a number.
    """
    values = {**values, **(values.get("text_config") or {})}
    values = {**_LEFT_OUT.get(str(values.get("model_type")), {}), **values}
    names = ("num_hidden_layers", "hidden_size", "num_attention_heads", "vocab_size")
    numbers = [values.get(name) for name in names]
    if any(_EXPERTS.fullmatch(name) and value for name, value in values.items()) or not all(
        isinstance(number, int) and number > 0 for number in numbers
    ):
        return None
    layers, hidden, heads, vocabulary = (int(number or 0) for number in numbers)
    kinds = " ".join(map(str, values.get("architectures") or []))
    encoder = "CausalLM" not in kinds and "ConditionalGeneration" not in kinds
    return ModelShape(
        layers,
        hidden,
        heads,
        int(values.get("num_key_value_heads") or heads),
        int(values.get("intermediate_size") or 4 * hidden),
        vocabulary,
        int(values.get("max_position_embeddings") or 0) or 1 << 30,
        int(values.get("head_dim") or hidden // heads),
        bool(values.get("tie_word_embeddings", False)),
        attention_bias=bool(
            values.get("attention_bias", values.get("model_type") in ("qwen2", "qwen2_moe"))
        ),
        encoder=encoder,
    )
