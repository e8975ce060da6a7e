"""A process that is allotted GPUs on which CUDA fails does not compute on the CPU in silence."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from pipeline.config import EngineConfig, Trainer
from pipeline.core.devices import cuda_works
from pipeline.core.errors import DependencyError
from pipeline.index.models import resolve_device
from pipeline.llm.transformers_engine import TransformersEngine
from pipeline.training.lora import pick_device

WARNING = "CUDA initialization: Error 802: system not yet initialized"
ENTRANCES: dict[str, Callable[[], object]] = {
    "index": lambda: resolve_device("auto", "index.embedder.device"),
    "training": lambda: pick_device(Trainer(learning_rate=1e-4, batch_size=1), "sft"),
    "engine": lambda: TransformersEngine(EngineConfig(kind="transformers"), Path("unread")),
}


@pytest.fixture
def broken_cuda(monkeypatch: pytest.MonkeyPatch) -> None:
    """A build of torch for GPUs that warns as it does where the driver fails."""

    def unavailable() -> bool:
        warnings.warn(WARNING, stacklevel=1)
        return False

    monkeypatch.setattr(torch.version, "cuda", "13.0")
    monkeypatch.setattr(torch.cuda, "is_available", unavailable)


@pytest.mark.usefixtures("broken_cuda")
@pytest.mark.parametrize("entrance", ENTRANCES.values(), ids=ENTRANCES.keys())
def test_allotted_gpus_that_cuda_cannot_use_are_an_error_with_the_warning_of_torch(
    entrance: Callable[[], object], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0,1")
    with pytest.raises(DependencyError, match=f"CUDA_VISIBLE_DEVICES is 0,1.*{WARNING}"):
        entrance()


@pytest.mark.usefixtures("broken_cuda")
def test_the_reason_is_asked_for_again_where_torch_has_warned_before(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def fail() -> None:
        raise RuntimeError("Found no NVIDIA driver on your system.")

    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr(torch.cuda, "init", fail)
    with pytest.raises(DependencyError, match="Found no NVIDIA driver"):
        cuda_works()


@pytest.mark.usefixtures("broken_cuda")
@pytest.mark.parametrize("devices", [None, "", "-1"])
def test_without_allotted_gpus_the_cpu_computes(
    devices: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    if devices is None:
        monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    else:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", devices)
    assert not cuda_works()


def test_a_torch_for_cpus_computes_on_the_cpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0")
    monkeypatch.setattr(torch.version, "cuda", None)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert not cuda_works()
