"""The origin of a policy: ``lineage.json`` beside every adapter.

A policy's name is a fingerprint of its *content* (adapter tensors, their scale, and the base
model's files). Entries keyed by it therefore stay valid when a directory is overwritten, and
engines can load several policies under distinct names. The file also records base, parent,
reference, round, method, settings, seed and counts, so it tells which policy was the reference of
each round.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
from collections.abc import Mapping
from pathlib import Path

from pipeline.core.atomic import write_json
from pipeline.core.errors import TrainingError
from pipeline.core.model_files import LINEAGE, lineage_fields
from pipeline.core.record_io import parse_record
from pipeline.llm.adapter_files import Tensor, adapter_settings, adapter_tensors

# Settings of adapters from elsewhere that change the output; the stages never set them.
_SCALING = ("rank_pattern", "alpha_pattern", "use_rslora", "use_dora", "fan_in_fan_out")


@dataclasses.dataclass(frozen=True)
class Lineage:
    """The origin of one policy.

    ``policy`` is its fingerprint, ``base_sha`` the base model's `model_hash`, ``parent`` the policy
    that the round continued, and ``reference`` the policy whose log-probabilities the loss used.
    Policy 0 has neither and is ``round`` 0. ``method`` is "sft", "dpo+sft" or "grpo", "untrained"
    for the base model and "given" for an adapter of unknown origin. ``counts`` are the numbers of
    records and tokens of the training run. ``training`` has the number of steps, the highest
    learning rate and the change of the adapter.
    """

    policy: str
    base: str
    base_sha: str
    parent: str | None
    reference: str | None
    round: int
    method: str
    settings: dict[str, object]
    seed: int
    counts: dict[str, int]
    training: dict[str, float] | None = None

    def write(self, directory: Path) -> None:
        write_json(directory / LINEAGE, dataclasses.asdict(self))


def read_lineage(directory: Path) -> Lineage:
    """The lineage of a policy directory. Raises InputError when it is missing or malformed."""
    return parse_record(Lineage, lineage_fields(directory), directory / LINEAGE, None)


def check_base(lineage: Lineage, base_sha: str) -> None:
    """Raise TrainingError when an adapter was trained over a base other than ``base_sha``."""
    if lineage.base_sha != base_sha:
        raise TrainingError(
            f"policy {lineage.policy} was trained over base {lineage.base} with content "
            f"{lineage.base_sha}; model.base now has content {base_sha}; train SFT again"
        )


def policy_fingerprint(
    adapter: Path, base: str, tensors: Mapping[str, Tensor] | None = None
) -> str:
    """The name of a policy: 16 hexadecimal digits over its adapter's tensors, scale and ``base``.

    ``base`` is the base model's `model_hash`; ``tensors`` are the adapter's tensors if they have
    been read. Raises InputError for an adapter that is missing or damaged.
    """
    config = adapter_settings(adapter)
    shape = [config["r"], config["lora_alpha"], sorted(config["target_modules"])]
    if others := {name: config[name] for name in _SCALING if config.get(name)}:
        shape.append(others)
    digest = hashlib.sha256(json.dumps([base, shape]).encode())
    for name, tensor in (tensors or adapter_tensors(adapter)).items():
        digest.update(f"{name} {tensor.dtype} {tensor.shape}".encode())
        digest.update(tensor.data)
    return digest.hexdigest()[:16]
