"""Check that a LoRA adapter changes its base model as its files say.

PEFT ignores tensors that it finds no place for, and keeps initial values, which are random or 0,
where the file has no tensor. Another policy, often the base model, would then be used without a
message. Input: an adapter's directory with ``adapter_config.json`` and
``adapter_model.safetensors``, and its base model. Output: its tensors, or an InputError. Only
`check_adapter` imports torch; it loads no weights of the base model.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pipeline.core.errors import InputError, model_problem
from pipeline.core.input_files import read_json
from pipeline.core.model_files import ADAPTER_SETTINGS, ADAPTER_WEIGHTS

_DTYPES = {"F64": "float64", "F32": "float32", "F16": "float16", "BF16": "bfloat16"}
_NAME = "default"  # of the adapter inside PEFT's model
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
        raise InputError.at(path, None, f"expected a LoRA adapter; its type is {kind!r}")
    rank, alpha, targets = (settings.get(n) for n in ("r", "lora_alpha", "target_modules"))
    names = targets if isinstance(targets, list) else [targets]
    problem = None
    if not isinstance(rank, int) or isinstance(rank, bool) or rank < 1:
        problem = f"r is {rank!r}; expected a whole number from 1"
    elif not isinstance(alpha, int | float) or isinstance(alpha, bool) or not alpha:
        problem = f"lora_alpha is {alpha!r}; expected a number other than 0, which changes nothing"
    elif not names or not all(isinstance(name, str) and name for name in names):
        problem = f"target_modules is {targets!r}; expected names of modules"
    if problem is not None:
        raise InputError.at(path, None, f"expected a LoRA adapter; {problem}")
    return settings


def adapter_tensors(adapter: Path) -> dict[str, Tensor]:
    """The tensors of an adapter by name, sorted.

    Raises InputError when the file is missing or damaged, holds no tensor, numbers of another type
    than float, NaN or infinity.
    """
    from safetensors import SafetensorError, deserialize

    path = adapter / ADAPTER_WEIGHTS
    if not path.is_file():
        raise InputError.at(path, None, f"no such file, so there is no adapter; {_REMEDY}")
    try:
        found = sorted(deserialize(path.read_bytes()))  # type: ignore[no-untyped-call]
    except (SafetensorError, OSError) as error:
        problem = (
            f"not a readable safetensors file ({model_problem(error)}); copy the adapter again"
        )
        raise InputError.at(path, None, problem) from None
    tensors = {}
    for name, value in found:
        dtype = _DTYPES.get(value["dtype"])
        if dtype is None:
            problem = f"{name} is {value['dtype']}; expected {', '.join(_DTYPES)}; {_REMEDY}"
            raise InputError.at(path, None, problem)
        tensor = Tensor(dtype, tuple(value["shape"]), bytes(value["data"]))
        if not tensor.is_finite():
            raise InputError.at(path, None, f"{name} holds NaN or infinity; {_REMEDY}")
        tensors[name] = tensor
    if not tensors:
        raise InputError.at(path, None, f"it holds no tensor; {_REMEDY}")
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
            None,
            "the adapter is untrained: A or B of each module is 0, so it changes nothing; name the "
            "base model, or a trained adapter",
        )


def check_adapter(adapter: Path, base: Path | str) -> None:
    """Raise InputError unless PEFT loads the whole adapter, and it changes the base model.

    The base model is built without weights.
    """
    import torch
    from peft import LoraConfig, get_peft_model, load_peft_weights, set_peft_model_state_dict
    from transformers import AutoConfig, AutoModelForCausalLM

    adapter_settings(adapter)
    check_effect(adapter, adapter_tensors(adapter))
    try:
        shape = AutoConfig.from_pretrained(str(base), trust_remote_code=False)
        with torch.device("meta"):
            model = AutoModelForCausalLM.from_config(shape, trust_remote_code=False)
    except Exception as error:  # noqa: BLE001 - damaged files of a model raise many types
        raise InputError(f"{base}: not a language model: {model_problem(error)}") from None
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
            None,
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
            None,
            f"it has no tensor for {len(missing)} weights that {ADAPTER_SETTINGS} names, such as "
            f"{missing[0].replace(f'.{name}', '')}, so they would change nothing; {_REMEDY}",
        )
    for path, layer in policy.named_modules():
        if isinstance(layer, LoraLayer) and name in layer.scaling:
            scale = layer.scaling[name]
            if not scale or not math.isfinite(scale):
                raise InputError.at(
                    adapter / ADAPTER_SETTINGS,
                    None,
                    f"the scale of {path} is {scale:g}, so its weights change nothing; correct "
                    "lora_alpha and alpha_pattern",
                )
