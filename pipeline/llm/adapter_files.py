"""Check that a LoRA adapter changes its base model as its files say.

PEFT ignores tensors that it finds no place for, and keeps initial values, which are random or 0,
where the file has no tensor. Another policy, often the base model, would then be used without a
message. vLLM ignores or refuses further settings where it loads an adapter itself, the latter at
the first request. Input: an adapter's directory with ``adapter_config.json`` and
``adapter_model.safetensors``, and its base model. Output: its tensors, or an InputError. Only
`check_adapter` and `empty_model` import torch; they load no weights of the base model.
"""

from __future__ import annotations

import logging
import math
import warnings
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pipeline.config.base import EngineConfig
from pipeline.core.errors import InputError, model_problem
from pipeline.core.input_files import read_json
from pipeline.core.model_files import ADAPTER_SETTINGS, ADAPTER_WEIGHTS

_DTYPES = {"F64": "float64", "F32": "float32", "F16": "float16", "BF16": "bfloat16"}
UNMERGED = "keep the adapter unmerged (engine.adapters: loaded, steep export model --adapter)"
_NAME = "default"  # of the adapter inside PEFT's model
LORA_RANKS = (1, 8, 16, 32, 64, 128, 256, 320, 512)  # values that vLLM accepts for max_lora_rank
# Settings of PEFT that change no output of a saved adapter, besides its tensors.
_NEUTRAL = frozenset((
    "auto_mapping", "base_model_name_or_path", "bias", "corda_config", "eva_config",
    "exclude_modules", "inference_mode", "layers_pattern", "layers_to_transform", "loftq_config",
    "lora_dropout", "lora_ga_config", "megatron_core", "peft_type", "peft_version",
    "qalora_group_size", "revision", "task_type",
))  # fmt: skip
# Of the others vLLM reads these. Any other that is set would be ignored, or refused at the first
# request (vllm 0.32).
_VLLM_READS = frozenset((
    "alpha_pattern", "fan_in_fan_out", "lora_alpha", "r", "rank_pattern", "target_modules",
    "use_rslora",
))  # fmt: skip
# Other ways to begin subtract the adapter from the base model, which only PEFT does.
_PLAIN_STARTS = ("gaussian", "eva", "orthogonal", "mica", "lora_ga")
_REMEDY = "save the adapter with PEFT's save_pretrained again, or train it again"


@dataclass(frozen=True)
class Tensor:
    """A tensor as its file has it; ``dtype`` is the name in numpy, or bfloat16."""

    dtype: str
    shape: tuple[int, ...]
    data: bytes

    def is_finite(self) -> bool:
        import numpy as np

        return bool(np.isfinite(self._numbers()).all())

    def is_zero(self) -> bool:
        return not self._numbers().any()

    def _numbers(self) -> Any:
        import numpy as np

        if self.dtype != "bfloat16":
            return np.frombuffer(self.data, self.dtype)
        # The upper half of a float32.
        return (np.frombuffer(self.data, np.uint16).astype(np.uint32) << 16).view(np.float32)


def adapter_settings(adapter: Path) -> dict[str, Any]:
    """``adapter_config.json`` of a LoRA adapter with weights.

    Raises InputError when a file is missing or holds no settings of a LoRA adapter.
    """
    for name in (ADAPTER_SETTINGS, ADAPTER_WEIGHTS):
        if not (adapter / name).is_file():
            raise InputError(
                f"{adapter} has no {name}; expected a LoRA adapter as PEFT saves it, with "
                "safe_serialization"
            )
    path = adapter / ADAPTER_SETTINGS
    settings: dict[str, Any] = read_json(path)
    kind = settings.get("peft_type", "LORA")
    if kind != "LORA":
        raise InputError.at(path, f"expected a LoRA adapter; its type is {kind!r}")
    rank, alpha, targets = (settings.get(n) for n in ("r", "lora_alpha", "target_modules"))
    names = targets if isinstance(targets, list) else [targets]
    pattern = settings.get("rank_pattern") or {}
    problem = None
    if not _is_rank(rank):
        problem = f"r is {rank!r}; expected a whole number from 1"
    elif not isinstance(pattern, dict) or not all(map(_is_rank, pattern.values())):
        problem = f"rank_pattern is {pattern!r}; expected whole numbers from 1 by module"
    elif not isinstance(alpha, int | float) or isinstance(alpha, bool) or not alpha:
        problem = f"lora_alpha is {alpha!r}; expected a number other than 0, which changes nothing"
    elif not names or not all(isinstance(name, str) and name for name in names):
        problem = f"target_modules is {targets!r}; expected names of modules"
    if problem is not None:
        raise InputError.at(path, f"expected a LoRA adapter; {problem}")
    return settings


def _is_rank(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 1


def adapter_tensors(adapter: Path) -> dict[str, Tensor]:
    """The tensors of an adapter by name, sorted.

    Raises InputError when the file is missing or damaged, holds no tensor, numbers of another type
    than float, NaN or infinity.
    """
    from safetensors import SafetensorError, deserialize

    path = adapter / ADAPTER_WEIGHTS
    if not path.is_file():
        raise InputError.at(path, f"no such file, so there is no adapter; {_REMEDY}")
    try:
        found = sorted(deserialize(path.read_bytes()))  # type: ignore[no-untyped-call]
    except (SafetensorError, OSError) as error:
        problem = (
            f"not a readable safetensors file ({model_problem(error)}); copy the adapter again"
        )
        raise InputError.at(path, problem) from None
    tensors = {}
    for name, value in found:
        dtype = _DTYPES.get(value["dtype"])
        if dtype is None:
            problem = f"{name} is {value['dtype']}; expected {', '.join(_DTYPES)}; {_REMEDY}"
            raise InputError.at(path, problem)
        tensor = Tensor(dtype, tuple(value["shape"]), bytes(value["data"]))
        if not tensor.is_finite():
            raise InputError.at(path, f"{name} holds NaN or infinity; {_REMEDY}")
        tensors[name] = tensor
    if not tensors:
        raise InputError.at(path, f"it holds no tensor; {_REMEDY}")
    return tensors


def check_effect(adapter: Path, tensors: dict[str, Tensor]) -> None:
    """Raise InputError when every product B A of an adapter is 0, as before training."""
    pairs = [(name, name.replace("lora_B", "lora_A")) for name in tensors if "lora_B" in name]
    pairs += [
        (name, name.replace("embedding_B", "embedding_A"))
        for name in tensors
        if "embedding_B" in name
    ]
    if pairs and all(
        tensors[b].is_zero() or (a in tensors and tensors[a].is_zero()) for b, a in pairs
    ):
        raise InputError.at(
            adapter / ADAPTER_WEIGHTS,
            "the adapter is untrained: A or B of each module is 0, so it changes nothing; name the "
            "base model, or a trained adapter",
        )


def check_engine(adapter: Path, engine: EngineConfig) -> None:
    """Raise InputError for an adapter that the engine would not load as PEFT does."""
    settings = adapter_settings(adapter)
    if engine.adapters != "loaded" or engine.kind != "vllm":
        return
    deciding = deciding_settings(settings).items()
    unread = {name: value for name, value in deciding if name not in _VLLM_READS}
    if settings.get("bias", "none") != "none":
        unread["bias"] = settings["bias"]
    if lora_rank(settings) > LORA_RANKS[-1]:
        unread["r or rank_pattern"] = lora_rank(settings)
    if unread:
        named = ", ".join(f"{name}: {value!r}" for name, value in unread.items())
        raise InputError.at(
            adapter / ADAPTER_SETTINGS,
            f"engine.adapters is loaded, and vLLM loads no adapter with {named}; set "
            "engine.adapters: merged",
        )


def deciding_settings(settings: Mapping[str, Any]) -> dict[str, Any]:
    """The settings of an adapter that are set and change its output, sorted by name."""
    start = settings.get("init_lora_weights")
    plain = not isinstance(start, str) or start.lower() in _PLAIN_STARTS
    neutral = _NEUTRAL | {"init_lora_weights"} if plain else _NEUTRAL
    return {
        name: value for name, value in sorted(settings.items()) if value and name not in neutral
    }


def lora_rank(settings: Mapping[str, Any]) -> int:
    """The largest rank of an adapter."""
    ranks: list[int] = [settings["r"], *(settings.get("rank_pattern") or {}).values()]
    return max(ranks)


def empty_model(base: Path | str) -> Any:
    """A language model without weights. Raises InputError when its files do not describe one."""
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM

    # PEFT imports bitsandbytes, which warns of kernels that only quantized weights need.
    logging.getLogger("bitsandbytes").setLevel(logging.ERROR)
    try:
        shape = AutoConfig.from_pretrained(str(base), trust_remote_code=False)
        with torch.device("meta"):
            return AutoModelForCausalLM.from_config(shape, trust_remote_code=False)
    except Exception as error:  # noqa: BLE001 - damaged files of a model raise many types
        raise InputError(f"{base}: not a language model: {model_problem(error)}") from None


def check_adapter(adapter: Path, base: Path | str, *, merged: bool = False) -> None:
    """Raise InputError unless PEFT loads the whole adapter, and it changes the base model.

    With ``merged`` it must be possible to merge it too. The base model is built without weights.
    """
    adapter_settings(adapter)
    check_effect(adapter, adapter_tensors(adapter))
    model = empty_model(base)
    from peft import LoraConfig, get_peft_model, load_peft_weights, set_peft_model_state_dict

    try:
        settings = LoraConfig.from_pretrained(str(adapter))
        settings.init_lora_weights = False  # others compute with the weights of the base model
        policy = get_peft_model(model, settings, adapter_name=_NAME, low_cpu_mem_usage=True)
        result = set_peft_model_state_dict(
            policy, load_peft_weights(str(adapter), device="cpu"), _NAME, low_cpu_mem_usage=True
        )
    except Exception as error:  # noqa: BLE001 - PEFT raises many types for other settings and shapes
        raise does_not_fit(adapter, error) from None
    check_loaded(adapter, policy, result)
    if merged:
        try:
            merge(policy)
        except Exception as error:  # noqa: BLE001 - PEFT raises many types for what it cannot merge
            raise InputError(
                f"{adapter} cannot be merged: {model_problem(error)}; {UNMERGED}"
            ) from None


def merge(policy: Any) -> Any:
    """The model in which PEFT has merged all that an adapter changes."""
    with warnings.catch_warnings():
        # About layers that are merged already, and about embeddings that are tied no longer.
        warnings.simplefilter("ignore", UserWarning)
        return policy.merge_and_unload()


def does_not_fit(adapter: Path, error: Exception) -> InputError:
    return InputError(
        f"{adapter} does not fit model.base: {model_problem(error)}; set model.base to the model "
        "that it was trained over"
    )


def check_loaded(adapter: Path, policy: Any, result: Any, name: str = _NAME) -> None:
    """Raise InputError unless PEFT has loaded every tensor, and a tensor for every weight.

    ``result`` is what ``set_peft_model_state_dict`` returned for the adapter ``name`` of
    ``policy``.
    """
    from peft.tuners.lora import LoraLayer

    weights = adapter / ADAPTER_WEIGHTS
    if result.unexpected_keys:
        raise InputError.at(
            weights,
            f"{len(result.unexpected_keys)} of its tensors, such as {result.unexpected_keys[0]}, "
            "fit no module of model.base and would be ignored; expected names such as "
            "base_model.model.model.layers.0.self_attn.q_proj.lora_A.weight; set model.base to the "
            f"model that the adapter was trained over, or {_REMEDY}",
        )
    ours = [key for key in result.missing_keys if f".{name}." in key or key.endswith(f".{name}")]
    missing = [key for key in ours if "lora_" in key or "modules_to_save" in key]
    if missing:
        raise InputError.at(
            weights,
            f"it has no tensor for {len(missing)} weights that {ADAPTER_SETTINGS} names, such as "
            f"{missing[0].replace(f'.{name}', '')}, so they would change nothing; {_REMEDY}",
        )
    for path, layer in policy.named_modules():
        if isinstance(layer, LoraLayer) and name in layer.scaling:
            scale = layer.scaling[name]
            if not scale or not math.isfinite(scale):
                raise InputError.at(
                    adapter / ADAPTER_SETTINGS,
                    f"the scale of {path} is {scale:g}, so its weights change nothing; correct "
                    "lora_alpha and alpha_pattern",
                )
