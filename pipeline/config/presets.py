"""Settings that suit a base model by its size, and the prompt that describes a format.

Input: the name of a model, as `Model.base` has it. Output: a `Preset` of ``presets.toml`` with the
reason for it. No model is loaded and nothing is downloaded.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pipeline.config.policy import Prompt
from pipeline.config.reading import load
from pipeline.core.model_shapes import shape_of

_FILE: Mapping[str, Any] = tomllib.loads(
    Path(__file__).with_suffix(".toml").read_text(encoding="utf-8")
)
_UNKNOWN = 1e9  # the number of parameters of a model of unknown size
# ``8x7B``: eight experts.
_SIZE = re.compile(r"(?<![\d.])(?:(\d+)x)?(\d+(?:\.\d+)?)([bm])(?![a-z])", re.IGNORECASE)
_UNITS = {"m": 1e6, "b": 1e9}


@dataclass(frozen=True)
class Preset:
    """Settings for models of at most ``parameters`` weights.

    ``settings`` change an embedded configuration, on a machine without GPUs; the tiny reader's
    preset has none. ``on_gpu`` changes a configuration for one GPU of 24 GB.
    """

    name: str
    parameters: float
    settings: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    on_gpu: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)


PRESETS = [Preset(**row) for row in _FILE["presets"]]  # in order of size


def preset_of(base: str) -> tuple[Preset, float, str]:
    """The preset of a base model, its number of weights, and the reason as part of a sentence.

    The size is that of the model's shape, else the one in its name. Raises what `shape_of` does.
    """
    shape, size, why = shape_of(base), _UNKNOWN, "its size is unknown"
    named = [
        int(times or 1) * float(number) * _UNITS[unit.lower()]
        for times, number, unit in _SIZE.findall(Path(base).name)
    ]
    if shape is not None or named:
        size = max(named) if shape is None else shape.parameters
        why = f"it has {size / 1e6:,.0f} million parameters" + " by its name" * (shape is None)
    return next(one for one in PRESETS if size <= one.parameters), size, why


def format_prompt(grammar: str, format: str = "tags") -> tuple[str, Prompt]:
    """The configuration whose prompt describes the format of a method, and this prompt."""
    name = _FILE["prompts"]["tools" if format == "tools" else grammar]
    return name, load(name).prompt
