"""The merged model, loaded again, is the trained policy: the logits of both agree, for every kind of adapter."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from pipeline.core.errors import EngineError, InputError
from pipeline.llm.merged_adapter import save_merged
from tests.llm.adapter_kinds import FAMILIES, KINDS, LLAMA, adapter_of_kind, policy_of_kind
from tests.llm.small_models import small_model

pytestmark = pytest.mark.filterwarnings("ignore::UserWarning", "ignore::RuntimeWarning")
Base = Callable[[str, bool], Path]
SEQUENCE = [[3, 9, 5, 40, 41, 6, 7, 50, 60]]
SLOW = (
    "rslora", "every linear layer", "pissa", "all biases", "saved embedding", "saved both",
    "embedding alone", "embedding with dora",
)  # fmt: skip
# One of most kinds over tied embeddings, and the kinds that differ over transposed weights.
QUICK = [
    *(("llama", kind) for kind in KINDS if kind not in SLOW),
    ("gpt2", "embedding"),
    ("mixtral", "every linear layer"),
]
ALL = [(family, kind, tied) for family in FAMILIES for kind in KINDS for tied in (True, False)]
CASES = [
    pytest.param(
        *case,
        marks=() if case[2] and case[:2] in QUICK else pytest.mark.slow,
        id=f"{case[0]}-{'tied' if case[2] else 'untied'}-{case[1]}",
    )
    for case in ALL
]


def logits(model: Any) -> Any:
    import torch

    with torch.inference_mode():
        return model.eval()(torch.tensor(SEQUENCE)).logits.float()


def load(directory: Path, dtype: str = "float32") -> Any:
    from transformers import AutoModelForCausalLM

    return AutoModelForCausalLM.from_pretrained(directory, dtype=dtype)


@pytest.fixture(scope="module")
def base_of(tmp_path_factory: pytest.TempPathFactory) -> Base:
    """The base model of a family, with tied embeddings or without; each is written once."""
    folder = tmp_path_factory.mktemp("bases")

    @cache
    def write(name: str, tied: bool) -> Path:
        return FAMILIES[name].write(folder / f"{name}-{tied}", tied=tied)

    return write


@pytest.fixture(scope="module")
def untrained(base_of: Base) -> Callable[[str, bool], Any]:
    """The logits of a base model."""
    return cache(lambda family, tied: logits(load(base_of(family, tied))))


@pytest.mark.parametrize(("family", "kind", "tied"), CASES)
def test_a_merged_model_has_the_logits_of_the_trained_policy(
    family: str, kind: str, tied: bool, base_of: Base, untrained: Any, tmp_path: Path
) -> None:
    base = base_of(family, tied)
    adapter = tmp_path / "adapter"
    trained = logits(policy_of_kind(kind, FAMILIES[family], base, adapter))
    (tmp_path / "merged").mkdir()
    if kind == "bias of LoRA" and family != "gpt2":  # layers without a bias have no place for it
        with pytest.raises(InputError, match=r"cannot be merged.*keep the adapter unmerged"):
            save_merged(base, adapter, tmp_path / "merged", "float32")
        return
    save_merged(base, adapter, tmp_path / "merged", "float32")
    error = (logits(load(tmp_path / "merged")) - trained).abs().max()
    assert error < 1e-4 < 1e-2 < (trained - untrained(family, tied)).abs().max()


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_16_bit_models_differ_by_rounding_alone(dtype: str, base_of: Base, tmp_path: Path) -> None:
    base = base_of("llama", True)
    adapter = tmp_path / "adapter"
    trained = logits(policy_of_kind("embedding", LLAMA, base, adapter))
    (tmp_path / "merged").mkdir()
    save_merged(base, adapter, tmp_path / "merged", dtype)
    assert (logits(load(tmp_path / "merged", dtype)) - trained).abs().max() < 0.1


def test_a_base_in_4_bit_is_merged_in_the_numbers_of_the_merged_model(tmp_path: Path) -> None:
    from peft import PeftModel
    from transformers import AutoModelForCausalLM, BitsAndBytesConfig

    base, quantized = small_model(tmp_path / "base"), tmp_path / "quantized"
    four = BitsAndBytesConfig(load_in_4bit=True, bnb_4bit_quant_type="nf4")
    AutoModelForCausalLM.from_pretrained(
        base, dtype="float32", quantization_config=four
    ).save_pretrained(quantized)
    for name in ("tokenizer.json", "tokenizer_config.json", "chat_template.jinja"):
        (quantized / name).write_bytes((base / name).read_bytes())
    adapter = adapter_of_kind("plain", LLAMA, base, tmp_path / "adapter")
    (tmp_path / "merged").mkdir()
    save_merged(quantized, adapter, tmp_path / "merged", "float32")
    trained = logits(PeftModel.from_pretrained(load(quantized).dequantize(), str(adapter)))
    merged = load(tmp_path / "merged")
    assert not hasattr(merged.config, "quantization_config")
    assert (logits(merged) - trained).abs().max() < 1e-4


def test_a_merged_model_that_loads_as_another_policy_is_refused_with_the_module(
    tmp_path: Path,
) -> None:
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM, LlamaConfig, LlamaForCausalLM

    class ForgetfulConfig(LlamaConfig):
        model_type = "forgetful"

    class Forgetful(LlamaForCausalLM):
        """A model that loses a part of a weight on its way to the disk."""

        config_class = ForgetfulConfig

        def save_pretrained(self, *arguments: Any, **named: Any) -> None:
            with torch.no_grad():
                self.model.layers[1].self_attn.v_proj.weight.mul_(0.5)
            super().save_pretrained(*arguments, **named)

    AutoConfig.register("forgetful", ForgetfulConfig, exist_ok=True)
    AutoModelForCausalLM.register(ForgetfulConfig, Forgetful, exist_ok=True)
    base = replace(LLAMA, model_type="forgetful").write(tmp_path / "base", tied=True)
    adapter = adapter_of_kind("plain", LLAMA, base, tmp_path / "adapter")
    (tmp_path / "merged").mkdir()
    with pytest.raises(
        EngineError, match=r"not the trained policy.*module model\.layers\.1\.self_attn\.v_proj"
    ):
        save_merged(base, adapter, tmp_path / "merged", "float32")
