"""What ``dtype: auto`` is: by the processor, on GPUs, and in fingerprints."""

import json
from pathlib import Path

import pytest

from pipeline.config import load
from pipeline.config.machine_choices import DTYPES, dtype_of_cpu, resolve_dtypes
from pipeline.core.errors import InputError, StoreError
from pipeline.engine.run import keep_dtypes
from tasks import task_for
from tests.tasks.declared import fingerprints

ENGINE = "engine.dtype"
AUTO = ("index.embedder.dtype", ENGINE, "sft.dtype", "dpo.dtype")


@pytest.mark.parametrize(
    ("processor", "models", "engine"),
    [
        ("AuthenticAMD avx512f avx512_bf16", "bfloat16", "bfloat16"),
        ("AuthenticAMD avx512f", "float32", "bfloat16"),
        ("AuthenticAMD avx2", "float32", "float32"),
        ("GenuineIntel avx512f avx512_bf16 amx_bf16", "bfloat16", "float32"),
        ("GenuineIntel avx512f avx512_bf16", "float32", "float32"),
        (None, "float32", "float32"),
    ],
)
def test_auto_is_the_faster_type_of_the_processor(
    tmp_path: Path, processor: str | None, models: str, engine: str
) -> None:
    info = tmp_path / "cpuinfo"
    if processor is not None:
        vendor, flags = processor.split(maxsplit=1)
        info.write_text(f"processor : 0\nvendor_id : {vendor}\nflags : fpu {flags}\n")
    config = load("embedded", (f"runs_dir={tmp_path}",))
    found = resolve_dtypes(config, gpus=False, cpu=lambda engine: dtype_of_cpu(engine, info))
    assert found.dtypes == {**dict.fromkeys(AUTO, models), ENGINE: engine}
    settings = found.settings
    assert settings.engine.dtype == engine
    assert {settings.sft.dtype, settings.dpo.dtype, settings.index.embedder.dtype} == {models}


def test_gpus_take_bfloat16(tmp_path: Path) -> None:
    settings = load("embedded", (f"runs_dir={tmp_path}",))
    on_gpu = resolve_dtypes(settings, gpus=True, cpu=lambda _: "float32")
    assert on_gpu.dtypes == dict.fromkeys(AUTO, "bfloat16")
    on_cpu = load("embedded", (f"runs_dir={tmp_path}", "index.embedder.device=cpu"))
    mixed = resolve_dtypes(on_cpu, gpus=True, cpu=lambda _: "float32").dtypes
    assert {mixed[name] for name in AUTO if name != "index.embedder.dtype"} == {"bfloat16"}
    assert mixed["index.embedder.dtype"] == "float32"


@pytest.mark.parametrize("kept", ["float32", "bfloat16"])
def test_a_run_keeps_its_types_and_its_fingerprints_have_them(tmp_path: Path, kept: str) -> None:
    """One of the two cases is another type than this machine's."""
    runs = f"runs_dir={tmp_path}"
    (tmp_path / "embedded").mkdir()
    (tmp_path / "embedded" / DTYPES).write_text(json.dumps(dict.fromkeys(AUTO, kept)))
    other = "bfloat16" if kept == "float32" else "float32"
    resumed = fingerprints(runs)
    assert resumed == fingerprints(runs, *(f"{name}={kept}" for name in AUTO))
    assert resumed["sft"] != fingerprints(runs, f"sft.dtype={other}")["sft"]
    sft = task_for("sft", "embedded", (runs,))
    assert sft.key.settings["sft"]["dtype"] == kept
    assert task_for("sft", "embedded", (runs, f"sft.dtype={other}")).settings.sft.dtype == other


def test_a_damaged_file_of_types_is_named(tmp_path: Path) -> None:
    (tmp_path / "embedded").mkdir()
    file = tmp_path / "embedded" / DTYPES
    file.write_text('{"sft.dtype": ["float16"]}')
    settings = load("embedded", (f"runs_dir={tmp_path}",))
    with pytest.raises(InputError, match=r"dtypes\.json: expected float32 or bfloat16 for every"):
        resolve_dtypes(settings)


def test_two_processes_that_start_a_run_take_the_same_types(tmp_path: Path) -> None:
    settings = load("embedded", (f"runs_dir={tmp_path}",))
    slower = resolve_dtypes(settings, gpus=False, cpu=lambda _: "float32")
    faster = resolve_dtypes(settings, gpus=False, cpu=lambda _: "bfloat16")
    assert "sft.dtype float32" in str(keep_dtypes(slower))
    assert keep_dtypes(slower) is None
    with pytest.raises(StoreError, match="another process has just started this run"):
        keep_dtypes(faster)
