"""What ``dtype: auto`` is: by timed products, on GPUs, in rounds, and in fingerprints."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from pipeline.config import load
from pipeline.config.machine_choices import DTYPES, Seconds, measured_seconds, resolve_dtypes
from pipeline.core.errors import InputError, StoreError
from tasks.base import load_config
from tasks.resolved import keep_dtypes
from tasks.run import run, task_for, walk
from tests.tasks.counting_tasks import First, executions, task

AUTO = ("index.embedder.dtype", "sft.dtype", "dpo.dtype")


def timer(float32: float, bfloat16: float):  # type: ignore[no-untyped-def]
    return lambda: {"float32": float32, "bfloat16": bfloat16}


def untimed() -> Seconds:
    raise AssertionError("timed")


@pytest.mark.parametrize("faster", ["float32", "bfloat16"])
def test_auto_is_the_type_whose_products_take_less_time(tmp_path: Path, faster: str) -> None:
    seconds = timer(*((1.0, 2.0) if faster == "float32" else (2.0, 1.0)))
    found = resolve_dtypes(load("embedded", (f"runs_dir={tmp_path}",)), gpus=False, seconds=seconds)
    assert found.dtypes == dict.fromkeys(AUTO, faster)
    settings = found.settings
    assert {settings.sft.dtype, settings.dpo.dtype, settings.index.embedder.dtype} == {faster}
    assert not list(tmp_path.iterdir())  # only a run that starts writes


def test_gpus_take_bfloat16_and_time_nothing(tmp_path: Path) -> None:
    settings = load("embedded", (f"runs_dir={tmp_path}",))
    assert resolve_dtypes(settings, gpus=True, seconds=untimed).dtypes == dict.fromkeys(
        AUTO, "bfloat16"
    )
    on_cpu = load("embedded", (f"runs_dir={tmp_path}", "index.embedder.device=cpu"))
    mixed = resolve_dtypes(on_cpu, gpus=True, seconds=timer(1, 2)).dtypes
    assert {mixed[name] for name in AUTO if name != "index.embedder.dtype"} == {"bfloat16"}
    assert mixed["index.embedder.dtype"] == "float32"


def test_a_type_that_is_set_is_not_timed(tmp_path: Path) -> None:
    explicit = tuple(f"{name}=float32" for name in AUTO)
    settings = load("embedded", (f"runs_dir={tmp_path}", *explicit))
    found = resolve_dtypes(settings, gpus=True, seconds=untimed)
    assert found.settings is settings
    assert not found.dtypes


def test_auto_of_a_round_is_resolved_too(tmp_path: Path) -> None:
    own = ("dpo.dtype=float32", "per_round.2.dpo.dtype=auto")
    settings = load("embedded", (f"runs_dir={tmp_path}", *own))
    found = resolve_dtypes(settings, gpus=False, seconds=timer(2, 1)).settings
    assert [found.of_round(n).dpo.dtype for n in (1, 2)] == ["float32", "bfloat16"]


def test_this_processor_is_timed_in_a_process_of_its_own() -> None:
    seconds = measured_seconds()
    assert seconds.keys() == {"float32", "bfloat16"}
    assert all(0 < value < 60 for value in seconds.values())


@pytest.mark.parametrize("kept", ["float32", "bfloat16"])
def test_a_run_keeps_its_types_and_its_fingerprints_have_them(tmp_path: Path, kept: str) -> None:
    """Whatever is faster here: one of the two cases is another type than this machine's."""
    runs = f"runs_dir={tmp_path}"
    (tmp_path / "embedded").mkdir()
    (tmp_path / "embedded" / DTYPES).write_text(json.dumps(dict.fromkeys(AUTO, kept)))
    other = "bfloat16" if kept == "float32" else "float32"

    def keys(*overrides: str) -> dict[str, str]:
        report = task_for("report", "embedded", (runs, *overrides))
        return {stage.label: stage.key.fingerprint for stage in walk(report)}

    resumed = keys()
    assert resumed == keys(*(f"{name}={kept}" for name in AUTO))
    assert resumed["sft"] != keys(f"sft.dtype={other}")["sft"]
    sft = task_for("sft", "embedded", (runs,))
    assert sft.key.settings["sft"]["dtype"] == kept
    assert task_for("sft", "embedded", (runs, f"sft.dtype={other}")).settings.sft.dtype == other


def test_a_started_run_is_complete_without_torch(
    workspace: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The types are kept by the first run; the second is in a process whose torch cannot be imported."""
    load_config.cache_clear()
    run(task(First, workspace))
    file = workspace / "runs" / "embedded" / DTYPES
    kept = json.loads(file.read_text())
    assert kept.keys() == set(AUTO)
    assert f"kept in {file}" in capsys.readouterr().out
    (workspace / "torch.py").write_text("raise ImportError('no torch here')")
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join((str(workspace), os.environ["PYTHONPATH"])))
    code = (
        "import pathlib; from tasks.run import run; from tests.tasks.counting_tasks import *\n"
        f"run(task(First, pathlib.Path({str(workspace)!r})))"
    )
    again = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert (again.returncode, again.stdout) == (0, ""), again.stderr
    assert executions(workspace) == ["first"]
    file.unlink()
    untimed_run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert "DependencyError: dtype is auto, and torch could not time" in untimed_run.stderr
    assert "no torch here" in untimed_run.stderr


def test_a_damaged_file_of_types_is_named(tmp_path: Path) -> None:
    (tmp_path / "embedded").mkdir()
    file = tmp_path / "embedded" / DTYPES
    file.write_text('{"sft.dtype": ["float16"]}')
    settings = load("embedded", (f"runs_dir={tmp_path}",))
    with pytest.raises(InputError, match=r"dtypes\.json: expected float32 or bfloat16 for every"):
        resolve_dtypes(settings, seconds=untimed)


def test_two_processes_that_start_a_run_take_the_same_types(tmp_path: Path) -> None:
    settings = load("embedded", (f"runs_dir={tmp_path}",))
    slower, faster = (
        resolve_dtypes(settings, gpus=False, seconds=timer(1, other)) for other in (2, 0.5)
    )
    assert "sft.dtype float32" in str(keep_dtypes(slower))
    assert keep_dtypes(slower) is None
    with pytest.raises(StoreError, match="another process has just started this run"):
        keep_dtypes(faster)
