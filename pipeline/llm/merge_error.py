"""How much of a LoRA's change survives when it is merged into 16-bit weights.

A sum W + ΔW is rounded to the grid of its dtype. In bfloat16 neighboring numbers differ by up to
1/128 of their size, so a change of 5e-5 in weights of 0.02 moves only every second entry. Input: a
PEFT model. Output: the relative error ||round(W + ΔW) - W - ΔW|| / ||ΔW|| over all adapted weights,
and the share of entries that stay as they were.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pipeline.core.errors import ConfigError, InputError

# Larger errors come from steps that are small for the grid of the dtype, such as GRPO at 1e-5.
MOST_LOST = 0.1


@dataclass(frozen=True, slots=True)
class MergeError:
    """The error of merged weights against base plus adapter.

    Attributes:
        relative: ||round(W + ΔW) - W - ΔW|| / ||ΔW||; 0 for an adapter that changes nothing.
        unchanged: share of the entries with ΔW ≠ 0 that equal the base's.
        changed: number of entries of merged weights that differ from the base's.
    """

    relative: float
    unchanged: float
    changed: int

    def check(self, adapter: Path, dtype: str) -> None:
        """Raise ConfigError if more than `MOST_LOST` is lost, InputError if no entry changes."""
        if self.relative > MOST_LOST:
            raise ConfigError(
                f"{adapter}: merged in {dtype}, the adapter is off by {self.relative:.0%} of its "
                f"size ({self.unchanged:.0%} of its entries change nothing), so another policy "
                "would be sampled than was trained; set engine.adapters: loaded, or engine.dtype: "
                "float32"
            )
        if not self.changed:
            raise InputError(
                f"{adapter}: merged, the adapter changes no weight of the base model; name a "
                "trained adapter"
            )


def merge_and_measure(policy: Any) -> MergeError:
    """Merge the adapter of a PEFT model into its base weights, layer by layer."""
    from peft.tuners.lora import LoraLayer

    squared_error = squared_delta = 0.0
    unchanged = changing = changed = 0
    for layer in policy.modules():
        if not isinstance(layer, LoraLayer):
            continue
        (name,) = layer.active_adapters
        weight = layer.get_base_layer().weight
        before, delta = weight.detach().clone(), layer.get_delta_weight(name).detach().float()
        layer.merge(safe_merge=True)
        after = layer.get_base_layer().weight.detach()
        changed += int((after != before).sum())
        if layer.use_dora.get(name):
            continue  # DoRA rescales the base weights; its delta says nothing about the merged ones
        squared_error += float((after.double() - before.double() - delta.double()).square().sum())
        squared_delta += float(delta.double().square().sum())
        unchanged += int(((after == before) & (delta != 0)).sum())
        changing += int((delta != 0).sum())
    if not squared_delta:
        return MergeError(0.0, 0.0, changed)
    return MergeError((squared_error / squared_delta) ** 0.5, unchanged / changing, changed)
