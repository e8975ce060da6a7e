"""The base model, its tokenizer, and the LoRA adapter that is the policy.

Input: a base model directory (or the name of a model in the Hugging Face cache) and, from round 1
on, the adapter directory of the previous policy. Output: a PEFT model whose "default" adapter is
trained. There is always exactly one adapter over the base: each round continues the weights of the
round before and is not stacked on them. Adapters stay separate files and are never merged into a
quantized base, because that would change the outputs. TeaRAG (arXiv 2511.05385), 4.3: r = 8, alpha
= 32, dropout 0.1 on the four attention projections, in both stages.
"""

from __future__ import annotations

import logging
import os
import re
import warnings
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from pipeline.config.policy import Lora, Model, Trainer
from pipeline.core.atomic import write_json
from pipeline.core.errors import (
    ConfigError,
    DependencyError,
    TrainingError,
    model_problem,
)
from pipeline.core.gpus import cuda_works
from pipeline.core.input_files import read_json
from pipeline.core.language_models import load_language_model
from pipeline.core.model_files import ADAPTER_SETTINGS
from pipeline.llm.adapter_files import (
    adapter_settings,
    adapter_tensors,
    check_loaded,
    does_not_fit,
    empty_model,
)
from pipeline.llm.locate import locate
from pipeline.llm.tokenizer import Tokenizer, model_tokenizer
from pipeline.training.trl_types import CausalModel, PeftModel

if TYPE_CHECKING:
    from peft import LoraConfig
    from transformers import BitsAndBytesConfig


_ALONE = ("bias", "ensure_weight_tying")  # with these PEFT takes no second adapter


def locate_base(base: str) -> Path:
    """Directory of the base model, from a path or from the Hugging Face cache (or hub).

    Raises DependencyError when the model is missing or its directory holds no weights.
    """
    return locate(base, "model.base")


def load_tokenizer(directory: Path, model: Model) -> Tokenizer:
    """The base model's tokenizer with ``model.chat_template``.

    A tokenizer without a padding token gets its end-of-turn token for padding.

    Raises what `model_tokenizer` raises, ConfigError without a chat template.
    """
    tokenizer: Any = model_tokenizer(directory, model.chat_template)
    if tokenizer.chat_template is None:
        raise ConfigError(f"model.base {model.base} has no chat template; set model.chat_template")
    if tokenizer.pad_token is None:
        tokenizer.pad_token = tokenizer.eos_token  # padding is masked, so its id is never learned
    loaded: Tokenizer = tokenizer
    return loaded


def pick_device(settings: Trainer, block: str) -> Literal["cpu", "cuda"]:
    """The device to train on, checked against the requirements of the settings.

    Raises DependencyError without enough GPUs, or without a GPU for quantized weights.
    """
    import torch

    device: Literal["cpu", "cuda"] = "cuda" if cuda_works() else "cpu"
    if device == "cuda" and settings.processes > torch.cuda.device_count():
        raise DependencyError(
            f"{block}.processes is {settings.processes}; expected at most the number of GPUs, "
            f"{torch.cuda.device_count()}; lower it"
        )
    if device == "cpu" and settings.quantization != "none":
        raise DependencyError(
            f"{block}.quantization is {settings.quantization}, whose weights bitsandbytes trains "
            f"through on CUDA devices only; set {block}.quantization: none"
        )
    return device


def load_base(directory: Path, settings: Trainer, block: str, longest: int = 0) -> CausalModel:
    """The base model, in 4 or 8 bit with ``settings.quantization``; PEFT freezes it later.

    With a GPU, each tensor goes from its file to the GPU of this process, so that several processes
    do not hold the model in RAM at the same time. Raises DependencyError when a weight is missing
    or does not load, or the device is missing, TrainingError when it has fewer positions than the
    ``longest`` sequence has tokens.
    """
    import torch
    from safetensors import SafetensorError

    kwargs: dict[str, Any] = {"dtype": getattr(torch, settings.dtype)}
    device = pick_device(settings, block)
    if device == "cuda":
        number = int(os.environ.get("LOCAL_RANK", 0))  # of `pipeline.engine.process.launch`
        torch.cuda.set_device(number)  # PEFT loads adapters to the current device
        kwargs["device_map"] = {"": number}
    if settings.quantization != "none":
        kwargs["quantization_config"] = quantization_config(settings)

    try:
        model: CausalModel = load_language_model(directory, **kwargs)
    except (OSError, ValueError, SafetensorError) as error:
        raise DependencyError(
            f"{directory}: the model cannot be loaded: {model_problem(error)}"
        ) from None
    if longest:
        check_positions(model, longest, block)
    return model if settings.quantization == "none" else prepare_quantized(model, settings)


def quantization_config(settings: Trainer) -> BitsAndBytesConfig:
    """bitsandbytes' settings for 4 bit (QLoRA's NF4 with double quantization) or 8 bit."""
    import torch
    from transformers import BitsAndBytesConfig

    return BitsAndBytesConfig(
        load_in_4bit=settings.quantization == "4bit",
        load_in_8bit=settings.quantization == "8bit",
        bnb_4bit_quant_type="nf4",
        bnb_4bit_use_double_quant=True,
        bnb_4bit_compute_dtype=getattr(torch, settings.dtype),
    )


def prepare_quantized(model: CausalModel, settings: Trainer) -> CausalModel:
    """Freeze a base in 4 or 8 bit; the weights that are not quantized become float32."""
    from peft import prepare_model_for_kbit_training

    # In 8 bit, bitsandbytes warns at each projection of each pass that it computes in float16.
    logging.getLogger("bitsandbytes.autograd._functions").setLevel(logging.ERROR)
    return prepare_model_for_kbit_training(
        model, use_gradient_checkpointing=settings.gradient_checkpointing
    )


def is_quantized(model: PeftModel) -> bool:
    """Whether the base weights of a policy are in 4 or 8 bit."""
    return bool(getattr(model.get_base_model(), "is_quantized", False))


def vocabulary_size(directory: Path) -> int:
    """The number of token ids of a base model. Raises DependencyError when it cannot be read."""
    from transformers import AutoConfig

    try:
        config = AutoConfig.from_pretrained(directory, trust_remote_code=False)
        size: int = config.get_text_config().vocab_size
    except (OSError, ValueError) as error:
        raise DependencyError(
            f"{directory}: the model's config.json: {model_problem(error)}"
        ) from None
    return size


def check_positions(model: CausalModel, longest: int, block: str) -> None:
    """Raise TrainingError when ``longest`` tokens exceed the positions of the base model."""
    positions = getattr(model.config.get_text_config(), "max_position_embeddings", None)
    if positions is not None and longest > positions:
        raise TrainingError(
            f"the longest sequence has {longest} tokens; the base model has {positions} positions; "
            f"lower {block}.max_length to {positions} and set {block}.over_long: drop"
        )


def new_adapter(model: CausalModel, lora: Lora, seed: int) -> PeftModel:
    """Policy 0 before training: a seeded new adapter, equal to the base because B is zero.

    Raises ConfigError when one of ``lora.targets`` does not exist in the model or cannot be
    trained.
    """
    from peft import LoraConfig
    from transformers import set_seed

    set_seed(seed)
    settings = LoraConfig(
        r=lora.r,
        lora_alpha=lora.alpha,
        lora_dropout=lora.dropout,
        target_modules=list(lora.targets),
        task_type="CAUSAL_LM",
    )
    return _adapted(model, settings, lora)


def _adapted(model: CausalModel, settings: LoraConfig, lora: Lora) -> PeftModel:
    """``model`` with an adapter of these settings. Raises ConfigError for ``lora.targets``.

    The output embeddings take no adapter, because TRL multiplies by their own weight.
    """
    from peft import get_peft_model
    from peft.tuners.tuners_utils import BaseTunerLayer

    try:
        policy: PeftModel = get_peft_model(model, settings)
    except ValueError as error:
        reason = model_problem(error).partition("(")[0].partition(". ")[0].strip()
        raise _untrainable(model, lora, f"PEFT refuses it ({reason})") from None
    found = policy.base_model.targeted_module_names
    for target in lora.targets:
        if not any(name == target or name.endswith(f".{target}") for name in found):
            raise _untrainable(model, lora, f"the base model has no module {target}")
    if isinstance(policy.get_base_model().get_output_embeddings(), BaseTunerLayer):
        raise _untrainable(model, lora, "an adapter of the output embeddings is never trained")
    return policy


def _untrainable(model: CausalModel, lora: Lora, problem: str) -> ConfigError:
    """The error of ``lora.targets``, with the names of layers that can be trained."""
    names = {
        name.rpartition(".")[2]
        for name, module in model.named_modules()
        if type(module).__name__ in ("Linear", "Conv1D") and re.search(r"\.[0-9]+\.", name)
    }
    names -= {"base_layer", "default"}  # of targets that an adapter has replaced
    return ConfigError(
        f"lora.targets is {list(lora.targets)}: {problem}; name linear layers of the base model, "
        f"such as {', '.join(sorted(names))}"
    )


def check_targets(base: Path, lora: Lora) -> None:
    """What `new_adapter` raises for a base model, found without its weights."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # PEFT's, of tied embeddings
        new_adapter(empty_model(base), lora, seed=0)


def continue_adapter(model: CausalModel, adapter: Path, lora: Lora) -> PeftModel:
    """The previous policy with its adapter trainable and the dropout of ``lora``.

    Raises InputError when the adapter is missing or damaged, ConfigError when its shape differs
    from ``lora``.
    """
    saved = check_shape(adapter, lora)
    saved.lora_dropout = lora.dropout
    saved.inference_mode = False
    policy = _adapted(model, saved, lora)
    load_weights(policy, adapter, "default")  # tells what PEFT ignores, unlike from_pretrained
    return policy


def check_shape(adapter: Path, lora: Lora) -> LoraConfig:
    """The settings of the adapter that training continues; its shape must be that in ``lora``.

    The shape is the rank, alpha and targets. Raises InputError when the settings are missing or
    damaged, ConfigError when the shapes differ, for targets that are a pattern, and for settings
    that PEFT allows one adapter of a model.
    """
    from peft import LoraConfig

    adapter_settings(adapter)
    saved: LoraConfig = LoraConfig.from_pretrained(adapter)
    if isinstance(saved.target_modules, str):
        raise ConfigError(
            f"{adapter / ADAPTER_SETTINGS}: target_modules is the pattern "
            f"{saved.target_modules!r}; list the names of these modules there, as lora.targets does"
        )
    saved_shape = (saved.r, saved.lora_alpha, sorted(saved.target_modules))
    shape = (lora.r, lora.alpha, sorted(lora.targets))
    if saved_shape != shape:
        raise ConfigError(
            f"lora has r, alpha, targets {shape}, but the previous policy in {adapter} has "
            f"{saved_shape}, and a round continues that policy; set lora to its values, or train "
            "SFT again"
        )
    if alone := [name for name in _ALONE if getattr(saved, name) not in (False, "none")]:
        raise ConfigError(
            f"{adapter} has {alone[0]}: {getattr(saved, alone[0])}, which leaves no place for the "
            "reference of a round; merge it (steep export model --merged, or PEFT's "
            "merge_and_unload), set model.base to the merged model, and start: base"
        )
    return saved


def load_weights(model: PeftModel, adapter: Path, name: str) -> None:
    """Overwrite the adapter ``name`` of a PEFT model with the weights in ``adapter``.

    Raises InputError when they are missing, damaged, of another shape, or named differently from
    the model's adapter.
    """
    from peft import load_peft_weights, set_peft_model_state_dict

    adapter_tensors(adapter)
    weights = load_peft_weights(adapter, device="cpu")
    try:
        result = set_peft_model_state_dict(model, weights, adapter_name=name)
    except (RuntimeError, KeyError) as error:
        raise does_not_fit(adapter, error) from None
    check_loaded(adapter, model, result, name)


def save_adapter(model: PeftModel, directory: Path) -> None:
    """Write the trained adapter, without the base model, in PEFT's format."""
    model.save_pretrained(directory, selected_adapters=["default"], save_embedding_layers=False)
    (directory / "README.md").unlink(missing_ok=True)  # PEFT writes an unfilled model card
    settings = read_json(directory / ADAPTER_SETTINGS)
    settings["target_modules"].sort()  # PEFT holds a set, whose order differs between processes
    write_json(directory / ADAPTER_SETTINGS, settings)
