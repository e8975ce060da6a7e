"""Adapters that would leave the base model as it is, in whole or in part, or cannot be loaded."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

SETTINGS, WEIGHTS = "adapter_config.json", "adapter_model.safetensors"
Tensors = dict[str, Any]


@dataclass(frozen=True)
class Defect:
    """``tensors`` gives other tensors for those of a whole adapter; ``settings`` are changed."""

    name: str
    tensors: Callable[[Tensors], Tensors] = dict
    settings: Mapping[str, Any] = field(default_factory=dict)

    def write(self, adapter: Path, directory: Path) -> Path:
        """Copy an adapter with the defect."""
        from safetensors.torch import load_file, save_file

        directory.mkdir(parents=True)
        settings = json.loads((adapter / SETTINGS).read_text()) | self.settings
        tensors = self.tensors(load_file(adapter / WEIGHTS))
        (directory / SETTINGS).write_text(json.dumps(settings))
        save_file(
            {name: value.contiguous() for name, value in tensors.items()}, directory / WEIGHTS
        )
        return directory


def _without(part: str) -> Callable[[Tensors], Tensors]:
    return lambda tensors: {name: value for name, value in tensors.items() if part not in name}


def _each(function: Callable[[Any], Any], part: str = "") -> Callable[[Tensors], Tensors]:
    return lambda tensors: {
        name: function(value) if part in name else value for name, value in tensors.items()
    }


def _first(function: Callable[[Any], Any]) -> Callable[[Tensors], Tensors]:
    return lambda tensors: {**tensors, min(tensors): function(tensors[min(tensors)])}


def _float8(value: Any) -> Any:
    import torch

    return value.to(torch.float8_e4m3fn)


FOREIGN = "base_model.model.lm_head2.lora_A.weight"
# These leave a policy equal to the base model, or only a part of the adapter, without a word of PEFT.
IGNORED = (
    Defect("names without the prefix", lambda t: {name[len("base_model.model.") :]: t[name] for name in t}),
    Defect("a foreign tensor", lambda t: {**t, FOREIGN: t[min(t)].clone()}),
    Defect("no tensor", _without("")),
    Defect("one layer only", _without("layers.1.")),
    Defect("no lora_A", _without("lora_A")),
    Defect("lora_alpha 0", settings={"lora_alpha": 0}),
    Defect("alpha_pattern 0", settings={"alpha_pattern": {"q_proj": 0, "v_proj": 0}}),
    Defect("untrained", _each(lambda value: value * 0, "lora_B")),
    Defect("zeros in bfloat16", _each(lambda value: (value * 0).bfloat16())),
    Defect("NaN", _first(lambda value: value * float("nan"))),
)  # fmt: skip
BROKEN = (
    Defect("0-D", _first(lambda value: value.sum())),
    Defect("transposed", _each(lambda value: value.T)),
    Defect("float8", _each(_float8)),
    Defect("rank as text", settings={"r": "8"}),
    Defect("no LoRA", settings={"peft_type": "PROMPT_TUNING"}),
    Defect("another rank", settings={"r": 3}),
    Defect("empty tensors", _each(lambda value: value[:0])),
)
