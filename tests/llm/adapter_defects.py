"""Adapters that would leave the base model as it is, in whole or in part, or cannot be loaded."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

SETTINGS, WEIGHTS = "adapter_config.json", "adapter_model.safetensors"
Tensors = dict[str, Any]


@dataclass(frozen=True)
class Defect:
    """``change`` is given the settings and the tensors of a whole adapter."""

    name: str
    change: Callable[[dict[str, Any], Tensors], object]

    def write(self, adapter: Path, directory: Path) -> Path:
        """Copy an adapter with the defect."""
        from safetensors.torch import load_file, save_file

        directory.mkdir(parents=True)
        settings = json.loads((adapter / SETTINGS).read_text())
        tensors = load_file(adapter / WEIGHTS)
        self.change(settings, tensors)
        (directory / SETTINGS).write_text(json.dumps(settings))
        save_file(
            {name: value.contiguous() for name, value in tensors.items()}, directory / WEIGHTS
        )
        return directory


def _renamed(old: str, new: str) -> Callable[[dict[str, Any], Tensors], None]:
    def change(settings: dict[str, Any], tensors: Tensors) -> None:
        for name in list(tensors):
            tensors[name.replace(old, new)] = tensors.pop(name)

    return change


def _dropped(part: str) -> Callable[[dict[str, Any], Tensors], None]:
    def change(settings: dict[str, Any], tensors: Tensors) -> None:
        for name in [name for name in tensors if part in name]:
            del tensors[name]

    return change


def _mapped(
    function: Callable[[Any], Any], part: str = ""
) -> Callable[[dict[str, Any], Tensors], None]:
    def change(settings: dict[str, Any], tensors: Tensors) -> None:
        for name in [name for name in tensors if part in name]:
            tensors[name] = function(tensors[name])

    return change


def _foreign(settings: dict[str, Any], tensors: Tensors) -> None:
    tensors["base_model.model.lm_head2.lora_A.weight"] = next(iter(tensors.values())).clone()


def _first(function: Callable[[Any], Any]) -> Callable[[dict[str, Any], Tensors], None]:
    def change(settings: dict[str, Any], tensors: Tensors) -> None:
        name = min(tensors)
        tensors[name] = function(tensors[name])

    return change


def _to(dtype: str) -> Callable[[Any], Any]:
    def convert(value: Any) -> Any:
        import torch

        return value.to(getattr(torch, dtype))

    return convert


# These leave a policy equal to the base model, or only a part of the adapter, without a word of PEFT.
IGNORED = (
    Defect("names without the prefix", _renamed("base_model.model.", "")),
    Defect("a foreign tensor", _foreign),
    Defect("no tensor", lambda settings, tensors: tensors.clear()),
    Defect("one layer only", _dropped("layers.1.")),
    Defect("no lora_A", _dropped("lora_A")),
    Defect("lora_alpha 0", lambda settings, tensors: settings.update(lora_alpha=0)),
    Defect(
        "alpha_pattern 0",
        lambda settings, tensors: settings.update(alpha_pattern={"q_proj": 0, "v_proj": 0}),
    ),
    Defect("untrained", _mapped(lambda value: value * 0, "lora_B")),
    Defect("zeros in bfloat16", _mapped(lambda value: _to("bfloat16")(value * 0))),
    Defect("NaN", _first(lambda value: value * float("nan"))),
)
BROKEN = (
    Defect("0-D", _first(lambda value: value.sum())),
    Defect("transposed", _mapped(lambda value: value.T.contiguous())),
    Defect("float8", _mapped(_to("float8_e4m3fn"))),
    Defect("rank as text", lambda settings, tensors: settings.update(r="8")),
    Defect("no LoRA", lambda settings, tensors: settings.update(peft_type="PROMPT_TUNING")),
    Defect("another rank", lambda settings, tensors: settings.update(r=3)),
    Defect("empty tensors", _mapped(lambda value: value[:0])),
)
