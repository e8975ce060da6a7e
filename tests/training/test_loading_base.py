"""The base of a training: on which devices it is loaded, and what it and its adapter must have."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from pipeline.config import EngineConfig, Lora, Sft
from pipeline.core.errors import ConfigError, DependencyError, EngineError, TrainingError
from pipeline.llm.merged_adapter import save_merged
from pipeline.llm.transformers_engine import TransformersEngine
from pipeline.training.lora import check_positions, check_shape, load_base, new_adapter
from pipeline.training.trainer_args import sorted_steps
from tests.llm.small_models import small_adapter, small_model


class Recorder:
    """Stands for AutoModelForCausalLM: keeps the arguments of its calls and loads nothing."""

    def __init__(self) -> None:
        self.calls: list[dict[str, Any]] = []

    def from_pretrained(self, directory: Path, **arguments: Any) -> Any:
        import torch

        self.calls.append(arguments)
        return torch.nn.Linear(2, 2), {"missing_keys": set(), "mismatched_keys": set()}


def settings(**changes: Any) -> Sft:
    return Sft(learning_rate=1e-5, batch_size=8, per_device_batch_size=1, processes=8, **changes)


def test_each_process_loads_the_base_onto_its_own_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """On a machine with eight GPUs; ``current`` are those that became the current device."""
    import peft  # noqa: F401 - imports bitsandbytes, which looks for a real GPU
    import torch
    import transformers

    recorder, current = Recorder(), list[int]()
    monkeypatch.setattr(transformers, "AutoModelForCausalLM", recorder)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 8)
    monkeypatch.setattr(torch.cuda, "set_device", current.append)
    monkeypatch.setenv("LOCAL_RANK", "5")
    load_base(Path("base"), settings(), "sft")
    load_base(Path("base"), settings(quantization="4bit"), "sft")
    assert [arguments["device_map"] for arguments in recorder.calls] == [{"": 5}, {"": 5}]
    assert current == [5, 5]
    assert ["quantization_config" in arguments for arguments in recorder.calls] == [False, True]


def test_a_single_process_trains_on_one_of_several_visible_gpus(base: Path, tmp_path: Path) -> None:
    """Otherwise Trainer wraps the model in DataParallel and multiplies the batch."""
    import torch
    from transformers import Trainer, TrainingArguments

    model = new_adapter(load_base(base, settings(), "sft"), Lora(), 0)
    arguments = TrainingArguments(str(tmp_path), per_device_train_batch_size=2, use_cpu=True)
    arguments._n_gpu = 8  # what transformers sets on a machine with eight GPUs
    trainer: Any = sorted_steps(Trainer, None, settings(), 0)(model=model, args=arguments)
    assert trainer.args.train_batch_size == 2
    assert not isinstance(trainer._wrap_model(trainer.model), torch.nn.DataParallel)


def _wrapped(tensors: dict[str, Any]) -> dict[str, Any]:
    return {f"base_model.model.{name}": tensor for name, tensor in tensors.items()}


def _without_a_layer(tensors: dict[str, Any]) -> dict[str, Any]:
    return {name: tensor for name, tensor in tensors.items() if ".layers.1." not in name}


def _with_more_tokens(tensors: dict[str, Any]) -> dict[str, Any]:
    import torch

    name = "model.embed_tokens.weight"
    return {**tensors, name: torch.cat([tensors[name], tensors[name]])}


@pytest.mark.parametrize(
    ("change", "lacking"),
    [
        (_wrapped, "lack 21 weights of LlamaForCausalLM .* such as lm_head.weight"),
        (_without_a_layer, r"lack 9 weights of LlamaForCausalLM .* such as model\.layers\.1\."),
        (_with_more_tokens, "lack 1 weights of LlamaForCausalLM .* such as model.embed_tokens"),
    ],
)
def test_files_that_lack_weights_are_refused_where_random_ones_would_be_used(
    tmp_path: Path, change: Any, lacking: str
) -> None:
    from safetensors.torch import load_file, save_file

    model = small_model(tmp_path / "model")
    adapter = small_adapter(model, tmp_path / "adapter")
    load_base(model, settings(), "sft")
    weights = model / "model.safetensors"
    save_file(change(load_file(weights)), weights, metadata={"format": "pt"})
    with pytest.raises(DependencyError, match=lacking):
        load_base(model, settings(), "sft")
    with pytest.raises(EngineError, match=lacking):
        TransformersEngine(EngineConfig(kind="transformers", dtype="float32"), model)
    (tmp_path / "merged").mkdir()
    with pytest.raises(EngineError, match=lacking):
        save_merged(model, adapter, tmp_path / "merged", "float32")


def test_the_positions_of_a_model_that_also_reads_images_are_those_of_its_language_model() -> None:
    import torch
    from transformers import AutoModelForCausalLM, Gemma3Config

    config = Gemma3Config(
        text_config={"num_hidden_layers": 1, "hidden_size": 32, "vocab_size": 64,
                     "max_position_embeddings": 512},
        vision_config={"num_hidden_layers": 1, "hidden_size": 32, "num_attention_heads": 2},
    )  # fmt: skip
    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(config)
    check_positions(model, 512, "sft")
    with pytest.raises(TrainingError, match="has 513 tokens; the base model has 512 positions"):
        check_positions(model, 513, "sft")


def test_an_adapter_whose_targets_are_a_pattern_is_refused_with_the_way_out(tmp_path: Path) -> None:
    """PEFT takes a pattern; the names of its modules are not in the settings then."""
    adapter = small_adapter(small_model(tmp_path / "model"), tmp_path / "adapter")
    file = adapter / "adapter_config.json"
    lora = Lora(r=8, alpha=32, targets=("q_proj", "v_proj"))
    assert check_shape(adapter, lora).r == 8
    values = json.loads(file.read_text())
    file.write_text(json.dumps({**values, "target_modules": r".*\.(q_proj|v_proj)"}))
    problem = (
        "adapter_config.json: target_modules is the pattern .* list the names of these modules"
    )
    with pytest.raises(ConfigError, match=problem):
        check_shape(adapter, lora)
