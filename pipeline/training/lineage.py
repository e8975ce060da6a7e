"""The origin of a policy: ``lineage.json`` beside every adapter; policies in directories.

A policy's name is a fingerprint of its *content* (adapter tensors, their scale, and the base
model's files). Entries keyed by it therefore stay valid when a directory is overwritten, and
engines can load several policies under distinct names. The file also records base, parent,
reference, round, method, settings, seed and counts, so it tells which policy was the reference of
each round.

A policy directory holds ``adapter/`` and ``lineage.json``. A bare adapter is a directory with
``adapter_config.json`` and ``adapter_model.safetensors``, such as PEFT writes. Its fingerprint is
computed as the training stages compute theirs, so an adapter has the same name in every directory.
Without a directory the policy is the base model, whose fingerprint is the hash of its files.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pipeline.config.policy import Dpo, Grpo
from pipeline.core.atomic import write_json
from pipeline.core.content_hashes import ContentHashes
from pipeline.core.errors import InputError, Place, TrainingError
from pipeline.core.model_files import (
    ADAPTER_SETTINGS,
    ADAPTER_WEIGHTS,
    LINEAGE,
    UNTRAINED,
    adapter_directory,
    find_model,
    lineage_fields,
)
from pipeline.core.record_io import parse_record
from pipeline.llm.adapter_files import (
    Tensor,
    adapter_settings,
    adapter_tensors,
    check_effect,
    deciding_settings,
)
from pipeline.rollout.policy import Policy, read_policy

_SHAPE = ("r", "lora_alpha", "target_modules")  # other settings the stages never set


@dataclasses.dataclass(frozen=True)
class Lineage:
    """The origin of one policy.

    ``policy`` is its fingerprint, ``base_sha`` the base model's `model_hash`, ``parent`` the policy
    that the round continued, and ``reference`` the policy whose log-probabilities the loss used.
    Policy 0 has neither and is ``round`` 0. ``method`` is "sft", "dpo+sft", "apo-zero+sft",
    "rejection-sampling" or "grpo", "untrained" for the base model and "given" for an adapter of
    unknown origin. ``counts`` are the numbers of
    records and tokens of the training run. ``training`` has the number of steps, the highest
    learning rate and the change of the adapter. ``chat_template`` is the hash and the arguments of
    the chat template (`ChatTemplate.identity`). ``grammar`` and ``format`` are what the policy was
    trained to write, null where that is unknown.
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
    chat_template: dict[str, str | bool | None] | None = None
    grammar: str | None = None
    format: str | None = None

    def write(self, directory: Path) -> None:
        write_json(directory / LINEAGE, dataclasses.asdict(self))


def read_lineage(directory: Path) -> Lineage:
    """The lineage of a policy directory. Raises InputError when it is missing or malformed."""
    with Place(directory / LINEAGE):
        return parse_record(Lineage, lineage_fields(directory))


def trained_form(directory: Path | None) -> dict[str, Any]:
    """``grammar``, ``format`` and ``chat_template`` of a policy, a bare adapter or a merged model.

    They are None where nothing tells them. For the directory ``adapter`` of a policy the lineage is
    beside that. Raises InputError when it is malformed.
    """
    fields: dict[str, Any] = {}
    if directory is not None:
        beside = [directory, *([directory.parent] if directory.name == "adapter" else [])]
        found = [each for each in beside if (each / LINEAGE).is_file()]
        fields = lineage_fields(found[0]) if found else {}
    return {name: fields.get(name) for name in ("grammar", "format", "chat_template")}


def check_base(lineage: Lineage, base_sha: str) -> None:
    """Raise TrainingError when an adapter was trained over a base other than ``base_sha``."""
    if lineage.base_sha != base_sha:
        raise TrainingError(
            f"policy {lineage.policy} was trained over base {lineage.base} with content "
            f"{lineage.base_sha}; model.base now has content {base_sha}; train SFT again"
        )


def reference_of(
    settings: Dpo | Grpo, parent: Lineage, inputs: Mapping[str, Path]
) -> Lineage | None:
    """The reference policy of a round that continues ``parent``; None for a loss without one.

    ``inputs`` are the directories of the round's policies. Raises TrainingError when the SFT policy
    has another base than the parent.
    """
    if isinstance(settings, Grpo):
        return parent if settings.beta else None
    if settings.reference == "sft":
        reference = read_lineage(inputs["sft"])
        check_base(reference, parent.base_sha)
        return reference
    return None if settings.loss == "sft" else parent


def policy_fingerprint(
    adapter: Path, base: str, tensors: Mapping[str, Tensor] | None = None
) -> str:
    """The name of a policy: 16 hexadecimal digits over its adapter's tensors, scale and ``base``.

    ``base`` is the base model's `model_hash`; ``tensors`` are the adapter's tensors if they have
    been read. Raises InputError for an adapter that is missing or damaged.
    """
    config = adapter_settings(adapter)
    shape = [config["r"], config["lora_alpha"], sorted(config["target_modules"])]
    deciding = deciding_settings(config)
    if others := {name: value for name, value in deciding.items() if name not in _SHAPE}:
        shape.append(others)
    digest = hashlib.sha256(json.dumps([base, shape]).encode())
    for name, tensor in (tensors or adapter_tensors(adapter)).items():
        digest.update(f"{name} {tensor.dtype} {tensor.shape}".encode())
        digest.update(tensor.data)
    return digest.hexdigest()[:16]


def policy_in(directory: Path | None, base: str, hashes_file: Path) -> Policy:
    """The policy in a directory; None is the base model ``base``.

    ``hashes_file`` stores content hashes of local models.

    Raises InputError when the directory holds no policy, DependencyError when the base model is
    needed and missing.
    """
    if directory is None:
        return Policy(None, _base_sha(base, hashes_file))
    if _bare(directory):
        return Policy(directory, policy_fingerprint(directory, _base_sha(base, hashes_file)))
    return read_policy(directory)


def checked_policy(directory: Path | None, base: str, hashes_file: Path) -> Policy:
    """`policy_in`, after a check of the files; `check_adapter` compares them to the base model.

    Raises InputError for a directory without a policy, and for an adapter that is damaged, is
    untrained, is not LoRA, has other tensors than its lineage says, or was trained over another
    base.
    """
    if directory is None:
        return policy_in(None, base, hashes_file)
    if not (directory / LINEAGE).is_file() and not _bare(directory):
        raise InputError(
            f"{directory} holds no policy; expected {LINEAGE} with adapter/, as the stages sft and "
            f"train write them, or {ADAPTER_SETTINGS} with {ADAPTER_WEIGHTS}"
        )
    adapter = adapter_directory(directory)
    sha = _base_sha(base, hashes_file)
    if not _bare(directory) and lineage_fields(directory).get("method") == UNTRAINED:
        policy = Policy(None, sha)
    else:
        policy = Policy(adapter, _checked_fingerprint(adapter, base, sha, hashes_file))
    if _bare(directory):
        return policy
    lineage = read_lineage(directory)
    if lineage.base_sha != sha:
        raise InputError(
            f"{directory}: the policy was trained over base model {lineage.base} with content "
            f"{lineage.base_sha}, and model.base ({base}) has content {sha}; set model.base to "
            "that model"
        )
    if lineage.policy != policy.fingerprint:
        raise InputError(
            f"{adapter} differs from {directory / LINEAGE}, which names policy {lineage.policy}, "
            f"and the adapter is {policy.fingerprint}; copy the directory again, or name the "
            "adapter alone"
        )
    return policy


def _bare(directory: Path) -> bool:
    return (directory / ADAPTER_SETTINGS).is_file()


def _base_sha(base: str, hashes_file: Path) -> str:
    """The hash of the files of the base model."""
    from pipeline.training.lora import locate_base

    hashes = ContentHashes(hashes_file)
    sha = hashes.of(locate_base(base))
    hashes.save()
    return sha


def _checked_fingerprint(adapter: Path, base: str, sha: str, hashes_file: Path) -> str:
    """The fingerprint of an adapter that names the base model, and is trained.

    Raises InputError when the base model that it names is another one. Local models are compared by
    content. Otherwise the last parts of the names decide, so that ``Qwen/Qwen2.5-3B`` fits a copy
    in ``/models/Qwen2.5-3B``.
    """
    named = adapter_settings(adapter).get("base_model_name_or_path")
    if isinstance(named, str) and named not in ("", base):
        directory = Path(find_model(named))
        if directory.is_dir():
            same = ContentHashes(hashes_file).of(directory) == sha
        else:
            same = directory.name == Path(base).name
        if not same:
            raise InputError(
                f"{adapter} was trained over base model {named} (base_model_name_or_path), and "
                f"model.base is {base}; set model.base to that model"
            )
    tensors = adapter_tensors(adapter)
    check_effect(adapter, tensors)
    return policy_fingerprint(adapter, sha, tensors)
