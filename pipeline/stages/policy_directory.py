"""Find and check the policy in a directory: one that a training stage wrote, or a bare PEFT adapter.

A policy directory holds ``adapter/`` and ``lineage.json``. A bare adapter is a directory with
``adapter_config.json`` and ``adapter_model.safetensors``, such as PEFT writes. Its fingerprint is
computed as the training stages compute theirs, so an adapter has one name wherever it is. Without a
directory the policy is the base model, whose fingerprint is the hash of its files.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from pipeline.config import Config
from pipeline.core.content_hashes import ContentHashes
from pipeline.core.errors import InputError
from pipeline.core.input_files import read_json
from pipeline.core.policy_files import (
    ADAPTER_SETTINGS,
    LINEAGE,
    UNTRAINED,
    adapter_directory,
    lineage_fields,
)
from pipeline.core.shipped import find_model
from pipeline.rollout.policy import Policy, read_policy

_SETTINGS, _WEIGHTS = ADAPTER_SETTINGS, "adapter_model.safetensors"


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
    """`policy_in`, after a check that the files are whole and belong to the base model.

    Raises InputError for a directory without a policy, a damaged adapter, one that is no LoRA adapter,
    one whose tensors differ from its lineage, and one that was trained over another base.
    """
    if directory is None:
        return policy_in(None, config)
    if not (directory / LINEAGE).is_file() and not _bare(directory):
        raise InputError(
            f"{directory} holds no policy; expected {LINEAGE} with adapter/, as the stages sft and train "
            f"write them, or {_SETTINGS} with {_WEIGHTS}"
        )
    adapter = adapter_directory(directory)
    base, sha = _base(config)
    if not _bare(directory) and lineage_fields(directory).get("method") == UNTRAINED:
        policy = Policy(None, sha)
    else:
        policy = Policy(adapter, _fingerprint(adapter, _checked_settings(adapter), config))
    if _bare(directory):
        return policy
    from pipeline.training.lineage import read_lineage

    lineage = read_lineage(directory)
    if lineage.base_sha != sha:
        raise InputError(
            f"{directory}: the policy was trained over base model {lineage.base} with content "
            f"{lineage.base_sha}, and model.base ({base}) has content {sha}; set model.base to that model"
        )
    if lineage.policy != policy.fingerprint:
        raise InputError(
            f"{adapter} differs from {directory / LINEAGE}, which names policy {lineage.policy}, and the "
            f"adapter is {policy.fingerprint}; copy the directory again, or name the adapter alone"
        )
    return policy


def _bare(directory: Path) -> bool:
    return (directory / _SETTINGS).is_file()


def _base(config: Config) -> tuple[Path, str]:
    """The directory of the base model, and the hash of its files."""
    from pipeline.training.lora import locate_base

    directory = locate_base(config.model.base)
    hashes = ContentHashes(config.hashes_file)
    sha = hashes.of(directory)
    hashes.save()
    return directory, sha


def _checked_settings(adapter: Path) -> dict[str, Any]:
    for name in (_SETTINGS, _WEIGHTS):
        if not (adapter / name).is_file():
            raise InputError(
                f"{adapter} has no {name}; expected a LoRA adapter as PEFT saves it, with "
                "safe_serialization"
            )
    settings: dict[str, Any] = read_json(adapter / _SETTINGS)
    missing = {"r", "lora_alpha", "target_modules"} - settings.keys()
    if settings.get("peft_type", "LORA") != "LORA" or missing:
        problem = f"it has no {min(missing)}" if missing else f"its type is {settings['peft_type']}"
        raise InputError.at(adapter / _SETTINGS, None, f"expected a LoRA adapter; {problem}")
    return settings


def _fingerprint(adapter: Path, settings: dict[str, Any], config: Config) -> str:
    """The fingerprint of an adapter that fits the base model."""
    from safetensors import SafetensorError

    from pipeline.training.lineage import policy_fingerprint

    base, sha = _base(config)
    _check_named_base(adapter, settings.get("base_model_name_or_path"), config, base, sha)
    try:
        _check_shapes(adapter, base, bool(settings.get("fan_in_fan_out")))
        return policy_fingerprint(adapter, sha)
    except SafetensorError as error:
        problem = f"not readable as safetensors ({error}); copy the adapter again"
        raise InputError.at(adapter / _WEIGHTS, None, problem) from None
    except TypeError:
        problem = "r, lora_alpha or target_modules has an unexpected type; expected a LoRA adapter"
        raise InputError.at(adapter / _SETTINGS, None, problem) from None


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
            f"{adapter} was trained over base model {named} (base_model_name_or_path), and model.base is "
            f"{config.model.base}; set model.base to that model"
        )


def _check_shapes(adapter: Path, base: Path, transposed: bool) -> None:
    """Raise InputError unless every adapted weight is in the base model, with matching shape.

    PEFT ignores tensors of an adapter whose weight the model lacks. Bases without safetensors are not
    compared.
    """
    from safetensors import safe_open

    shapes: dict[str, list[int]] = {}
    for file in sorted(base.glob("*.safetensors")):
        with safe_open(file, framework="np") as weights:
            shapes |= {name: weights.get_slice(name).get_shape() for name in sorted(weights.keys())}
    if not shapes:
        return
    with safe_open(adapter / _WEIGHTS, framework="np") as tensors:
        for name in sorted(tensors.keys()):
            module, found, end = name.removeprefix("base_model.model.").rpartition(".lora_A")
            if not found:
                continue
            inner = tensors.get_slice(name).get_shape()[1]
            outer = tensors.get_slice(name.replace(".lora_A", ".lora_B")).get_shape()[0]
            expected = [inner, outer] if transposed else [outer, inner]
            actual = shapes.get(f"{module}{end.removeprefix('.default')}")
            if actual != expected:
                has = "no such weight" if actual is None else f"shape {actual}"
                raise InputError(
                    f"{adapter} does not fit model.base: it changes {module} of shape {expected}, and "
                    f"{base} has {has}; set model.base to the model that it was trained over"
                )
