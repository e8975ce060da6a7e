"""GPUs that a process may use, and CUDA that fails on them, which is never silent."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from pathlib import Path

import pytest

from pipeline.config import EngineConfig, Trainer
from pipeline.core.errors import DependencyError
from pipeline.core.gpus import (
    GIB,
    Gpu,
    allotted,
    compiler_fault,
    cuda_works,
    machine_gpus,
    parse_table,
    visible,
    visible_gpus,
)
from pipeline.llm.locate import resolve_device
from pipeline.llm.transformers_engine import TransformersEngine
from pipeline.training.lora import pick_device

TWO = [Gpu("A", 80 * GIB, "GPU-8932f937-d72c"), Gpu("B", 24 * GIB, "GPU-41")]


@pytest.fixture
def tool(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where a test can write an ``nvidia-smi``; no other one is found."""
    monkeypatch.setenv("PATH", str(tmp_path))
    return tmp_path / "nvidia-smi"


def write_tool(tool: Path, *lines: str) -> None:
    tool.write_text("\n".join(["#!/bin/sh", *lines]) + "\n")
    tool.chmod(0o755)


def test_the_table_of_the_driver_gives_names_bytes_and_uuids() -> None:
    text = "NVIDIA A100-SXM4-80GB, 81920, GPU-1a\nNVIDIA H100 MIG, [N/A], GPU-2b\n"
    assert parse_table(text) == [
        Gpu("NVIDIA A100-SXM4-80GB", 80 * GIB, "GPU-1a"),
        Gpu("NVIDIA H100 MIG", None, "GPU-2b"),
    ]


@pytest.mark.parametrize(
    ("allotment", "names"),
    [
        (None, ["A", "B"]),
        ("1", ["B"]),
        ("1,0", ["B", "A"]),
        ("", []),
        ("-1", []),
        ("0,7,1", ["A"]),  # CUDA ignores what follows an impossible number
        ("GPU-8932f937", ["A"]),
        ("MIG-7", ["MIG-7"]),
    ],
)
def test_the_allotment_of_the_environment_limits_the_gpus(
    allotment: str | None, names: list[str]
) -> None:
    environment = {} if allotment is None else {"CUDA_VISIBLE_DEVICES": allotment}
    assert [gpu.name for gpu in visible(TWO, allotted(environment))] == names


def test_the_tool_s_gpus_count_and_without_it_the_device_files(tool: Path, tmp_path: Path) -> None:
    """As in WSL2, which has no device files, and in containers without the tool."""
    assert machine_gpus(tmp_path) == []
    for name in ("nvidia10", "nvidia2", "nvidiactl", "nvidia-uvm"):
        (tmp_path / name).touch()
    assert [gpu.uuid for gpu in machine_gpus(tmp_path)] == ["nvidia2", "nvidia10"]
    write_tool(tool, "echo 'NVIDIA RTX 4090, 24564, GPU-1a'")
    assert machine_gpus(tmp_path) == [Gpu("NVIDIA RTX 4090", 24564 * 2**20, "GPU-1a")]
    assert visible_gpus({"CUDA_VISIBLE_DEVICES": ""}, tmp_path) == []


def test_a_missing_compiler_or_header_is_a_sentence(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("CC", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path))
    assert "there is no C compiler (gcc or clang)" in str(compiler_fault())
    compiler = tmp_path / "gcc"
    compiler.touch(0o755)
    assert f"{tmp_path}/Python.h is missing; install the headers" in str(
        compiler_fault(str(tmp_path))
    )
    (tmp_path / "Python.h").touch()
    assert compiler_fault(str(tmp_path)) is None


WARNING = "CUDA initialization: Error 802: system not yet initialized"
ENTRANCES: dict[str, Callable[[], object]] = {
    "index": lambda: resolve_device("auto", "index.embedder.device"),
    "training": lambda: pick_device(Trainer(learning_rate=1e-4, batch_size=1), "sft"),
    "engine": lambda: TransformersEngine(EngineConfig(kind="transformers"), Path("unread")),
}


@pytest.fixture
def broken_cuda(monkeypatch: pytest.MonkeyPatch) -> None:
    """A build of torch for GPUs that warns as it does where the driver fails."""
    import torch

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
@pytest.mark.parametrize("devices", [None, "", "-1"])
def test_without_allotted_gpus_the_cpu_computes(
    devices: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    if devices is None:
        monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    else:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", devices)
    assert not cuda_works()
