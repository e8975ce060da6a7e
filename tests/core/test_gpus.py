"""GPUs that a process may use: what the driver lists, and the allotment of its environment."""

from pathlib import Path

import pytest

from pipeline.core.gpus import (
    GIB,
    Gpu,
    compiler_fault,
    machine_gpus,
    nominal_gpu,
    parse_table,
    visible,
    visible_gpus,
)

TWO = [Gpu("A", 80 * GIB, "GPU-8932f937-d72c"), Gpu("B", 24 * GIB, "GPU-41")]


@pytest.fixture
def tool(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where a test can write an ``nvidia-smi``; no other one is found."""
    monkeypatch.setenv("PATH", str(tmp_path))
    return tmp_path / "nvidia-smi"


def write_tool(tool: Path, *lines: str) -> None:
    tool.write_text("\n".join(["#!/bin/sh", *lines]) + "\n")
    tool.chmod(0o755)


def write_driver(folder: Path, **told: str) -> None:
    folder.mkdir(parents=True)
    lines = [f"{field.replace('_', ' ')}: \t {value}" for field, value in told.items()]
    (folder / "information").write_text("\n".join(lines) + "\n")


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
    assert [gpu.name for gpu in visible(TWO, allotment)] == names


def test_a_machine_without_the_driver_has_no_gpu(tool: Path, tmp_path: Path) -> None:
    assert visible_gpus({}, tmp_path / "absent", tmp_path) == []


def test_gpus_are_found_by_the_tool_without_the_driver_s_folder(tool: Path, tmp_path: Path) -> None:
    """As in WSL2."""
    write_tool(tool, "echo 'NVIDIA RTX 4090, 24564, GPU-1a'")
    found = Gpu("NVIDIA RTX 4090", 24564 * 2**20, "GPU-1a")
    assert machine_gpus(tmp_path / "absent", tmp_path) == [found]
    assert visible_gpus({"CUDA_VISIBLE_DEVICES": ""}, tmp_path / "absent", tmp_path) == []


def test_the_tool_goes_before_the_driver_s_folder(tool: Path, tmp_path: Path) -> None:
    """The folder also has the devices that Slurm withholds from a job."""
    write_tool(tool, "echo 'B, 1024, GPU-2b'")
    write_driver(tmp_path / "gpus" / "0000:01:00.0", Model="A", GPU_UUID="GPU-1a")
    assert [gpu.uuid for gpu in machine_gpus(tmp_path / "gpus", tmp_path)] == ["GPU-2b"]


def test_without_the_tool_the_driver_s_folder_counts(tool: Path, tmp_path: Path) -> None:
    write_driver(tmp_path / "gpus" / "0000:02:00.0", Model="B", GPU_UUID="GPU-????????-????")
    write_driver(tmp_path / "gpus" / "0000:01:00.0", Model="A", GPU_UUID="GPU-1a")
    expected = [Gpu("A", None, "GPU-1a"), Gpu("B", None, "0000:02:00.0")]
    assert machine_gpus(tmp_path / "gpus", tmp_path) == expected
    write_tool(tool, "exit 9")  # it cannot reach the driver
    assert machine_gpus(tmp_path / "gpus", tmp_path) == expected


def test_without_both_the_device_files_count(tool: Path, tmp_path: Path) -> None:
    for name in ("nvidia10", "nvidia2", "nvidiactl", "nvidia-uvm"):
        (tmp_path / name).touch()
    found = machine_gpus(tmp_path / "absent", tmp_path)
    assert [gpu.uuid for gpu in found] == ["nvidia2", "nvidia10"]


def test_a_gpu_of_80_gb_offers_less_than_its_name() -> None:
    memory = nominal_gpu(80).memory
    assert memory is not None
    assert memory / GIB == pytest.approx(78.8)


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
