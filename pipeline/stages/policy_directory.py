"""Find and check the policy in a directory: from a training stage, or a bare PEFT adapter.

A policy directory holds ``adapter/`` and ``lineage.json``. A bare adapter is a directory with
``adapter_config.json`` and ``adapter_model.safetensors``, such as PEFT writes. Its fingerprint is
computed as the training stages compute theirs, so an adapter has the same name in every directory.
Without a directory the policy is the base model, whose fingerprint is the hash of its files.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from pipeline.config import Config
from pipeline.core.content_hashes import ContentHashes
from pipeline.core.errors import InputError
from pipeline.core.model_files import (
    ADAPTER_SETTINGS,
    ADAPTER_WEIGHTS,
    LINEAGE,
    UNTRAINED,
    adapter_directory,
    lineage_fields,
)
from pipeline.core.shipped import find_model
from pipeline.llm.adapter_files import adapter_settings, adapter_tensors, check_effect
from pipeline.rollout.policy import Policy, read_policy


def policy_in(directory: Path | None, config: Config) -> Policy:
    """The policy in a directory; None is the base model of the configuration.

    Raises InputError when the directory holds no policy, DependencyError when the base model is
    needed and missing.
    """
    if directory is None:
        return Policy(None, _base(config)[1])
    if _bare(directory):
        from pipeline.training.lineage import policy_fingerprint

        return Policy(directory, policy_fingerprint(directory, _base(config)[1]))
    return read_policy(directory)


def checked_policy(directory: Path | None, config: Config) -> Policy:
    """`policy_in`, after a check of the files; `check_adapter` compares them to the base model.

    Raises InputError for a directory without a policy, and for an adapter that is damaged, is
    untrained, is not LoRA, has other tensors than its lineage says, or was trained over another
    base.
    """
    if directory is None:
        return policy_in(None, config)
    if not (directory / LINEAGE).is_file() and not _bare(directory):
        raise InputError(
            f"{directory} holds no policy; expected {LINEAGE} with adapter/, as the stages sft and "
            f"train write them, or {ADAPTER_SETTINGS} with {ADAPTER_WEIGHTS}"
        )
    adapter = adapter_directory(directory)
    base, sha = _base(config)
    if not _bare(directory) and lineage_fields(directory).get("method") == UNTRAINED:
        policy = Policy(None, sha)
    else:
        policy = Policy(adapter, _fingerprint(adapter, adapter_settings(adapter), config))
    if _bare(directory):
        return policy
    from pipeline.training.lineage import read_lineage

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


def _base(config: Config) -> tuple[Path, str]:
    """The directory of the base model, and the hash of its files."""
    from pipeline.training.lora import locate_base

    directory = locate_base(config.model.base)
    hashes = ContentHashes(config.hashes_file)
    sha = hashes.of(directory)
    hashes.save()
    return directory, sha


def _fingerprint(adapter: Path, settings: dict[str, Any], config: Config) -> str:
    """The fingerprint of an adapter that names the base model, and is trained."""
    from pipeline.training.lineage import policy_fingerprint

    base, sha = _base(config)
    _check_named_base(adapter, settings.get("base_model_name_or_path"), config, base, sha)
    tensors = adapter_tensors(adapter)
    check_effect(adapter, tensors)
    return policy_fingerprint(adapter, sha, tensors)


def _check_named_base(adapter: Path, named: Any, config: Config, base: Path, sha: str) -> None:
    """Raise InputError when the base model that an adapter names is another one.

    Local models are compared by content. Otherwise the last parts of the names decide, so that
    ``Qwen/Qwen2.5-3B`` fits a copy in ``/models/Qwen2.5-3B``.
    """
    if not isinstance(named, str) or not named or named == config.model.base:
        return
    directory = Path(find_model(named))
    if directory.is_dir():
        same = directory.samefile(base) or ContentHashes(config.hashes_file).of(directory) == sha
    else:
        same = Path(named).name == Path(config.model.base).name
    if not same:
        raise InputError(
            f"{adapter} was trained over base model {named} (base_model_name_or_path), and "
            f"model.base is {config.model.base}; set model.base to that model"
        )
