"""The devices of a training process: where it loads the base, with and without GPUs, and how many it uses."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from pipeline.config import Lora, Sft
from pipeline.training.lora import load_base, new_adapter
from pipeline.training.trainer_args import sorted_steps


class Recorder:
    """Stands for AutoModelForCausalLM: keeps the arguments of its calls and loads nothing."""

    def __init__(self) -> None:
        self.calls: list[dict[str, Any]] = []

    def from_pretrained(self, directory: Path, **arguments: Any) -> Any:
        import torch

        self.calls.append(arguments)
        return torch.nn.Linear(2, 2)


@pytest.fixture
def recorder(monkeypatch: pytest.MonkeyPatch) -> Recorder:
    import peft  # noqa: F401 - imports bitsandbytes, which looks for a real GPU
    import transformers

    recorder = Recorder()
    monkeypatch.setattr(transformers, "AutoModelForCausalLM", recorder)
    return recorder


@pytest.fixture
def devices(recorder: Recorder, monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """A machine with eight GPUs; the numbers of those that became the current device."""
    import torch

    current: list[int] = []
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 8)
    monkeypatch.setattr(torch.cuda, "set_device", current.append)
    return current


def settings(**changes: Any) -> Sft:
    return Sft(learning_rate=1e-5, batch_size=8, per_device_batch_size=1, processes=8, **changes)


@pytest.mark.parametrize("quantization", ["none", "4bit"])
def test_each_process_loads_the_base_onto_its_own_gpu(
    recorder: Recorder, devices: list[int], monkeypatch: pytest.MonkeyPatch, quantization: str
) -> None:
    monkeypatch.setenv("LOCAL_RANK", "5")
    load_base(Path("base"), settings(quantization=quantization), "sft")
    [arguments] = recorder.calls
    assert arguments["device_map"] == {"": 5}
    assert devices == [5]
    assert ("quantization_config" in arguments) == (quantization == "4bit")


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
