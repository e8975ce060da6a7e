"""The parts of the GPU check run at tiny shapes on a CPU, and the check says what it cannot run."""

from __future__ import annotations

import json
import math
import os
import tempfile
from pathlib import Path

import pytest

from benchmarks.gpu_check.__main__ import main
from benchmarks.gpu_check.catalogue import PARTS, chosen
from benchmarks.gpu_check.device import one_gpu
from benchmarks.gpu_check.figures import Figures, Place
from benchmarks.gpu_check.page import BEGIN, END, write_results
from pipeline.core.errors import DependencyError, InputError

ROOT = Path(__file__).resolve().parents[2]
pytestmark = pytest.mark.filterwarnings("ignore::UserWarning")


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Place:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    return Place("cpu", "tiny", str(tmp_path), "llama-8b")


def values(figures: Figures) -> dict[str, float | str]:
    return {row.name: row.value for row in figures.rows}


def kept(figures: Figures) -> list[bool]:
    return [row.holds for row in figures.rows if row.holds is not None]


def test_sft_reports_time_and_loss_of_a_step(place: Place) -> None:
    from benchmarks.gpu_check.training import sft

    sft(place, figures := Figures())
    measured = values(figures)
    assert measured["sequences or pairs of a forward pass"] == 4
    assert float(measured["time of a step"]) > 0
    assert float(measured["loss at the first step"]) == pytest.approx(math.log(600), abs=0.5)


def test_dpo_starts_at_margin_zero_and_loss_ln_2(place: Place) -> None:
    from benchmarks.gpu_check.training import dpo, margin

    for part in (dpo, margin):
        part(place, figures := Figures())
        measured = values(figures)
        assert measured["DPO loss at step one"] == pytest.approx(math.log(2), abs=1e-5)
        assert measured["reward margin at step one"] == pytest.approx(0, abs=1e-5)
        assert kept(figures) == [True, True]


def test_grpo_runs_on_a_cached_batch_of_a_qwen(place: Place) -> None:
    from benchmarks.gpu_check.training import grpo

    qwen = Place("cpu", "tiny", place.workspace, "qwen-14b")
    grpo(qwen, figures := Figures())
    assert float(values(figures)["tokens"]) > 0


def test_a_stopped_run_continues_to_the_same_adapter(place: Place) -> None:
    from benchmarks.gpu_check.training import resume

    resume(place, figures := Figures())
    measured = values(figures)
    assert measured["steps in the log"] == "[1, 2, 3, 4, 5, 6]"
    assert measured["difference of the adapters"] == 0
    assert kept(figures) == [True, True, True]


def test_merging_in_bf16_loses_more_of_a_smaller_adapter(place: Place) -> None:
    from benchmarks.gpu_check.policies import adapters

    adapters(place, figures := Figures())
    measured = values(figures)
    lost = [
        float(measured[f"learning rate {rate}: error of the merged weights"])
        for rate in ("0.0005", "1e-05")
    ]
    assert lost[0] < lost[1]
    assert float(measured["learning rate 0.0005: change that the adapter makes"]) > 0


def test_the_engine_records_the_log_probabilities_of_the_trainer(place: Place) -> None:
    from benchmarks.gpu_check.policies import logprobs

    logprobs(place, figures := Figures())
    assert float(values(figures)["mean difference of a log-probability"]) < 1e-4
    assert kept(figures) == [True]


def test_embedder_and_rerankers_are_measured(place: Place) -> None:
    from benchmarks.gpu_check.encoders import embedder, reranker_cross, reranker_flag

    embedder(Place("cpu", "tiny", place.workspace, "e5-base"), figures := Figures())
    assert float(values(figures)["mean cosine of fp32 and bf16"]) > 0.99
    for part in (reranker_cross, reranker_flag):
        part(Place("cpu", "tiny", place.workspace, "bge-reranker"), figures := Figures())
        assert float(values(figures)["pairs"]) > 0


def run(tmp_path: Path, *options: str) -> tuple[int, dict[str, dict[str, object]]]:
    page = tmp_path / "gpu.md"
    status = main(["--device", "cpu", "--shapes", "tiny", "--page", str(page), *options])
    parts: dict[str, dict[str, object]] = json.loads(page.with_suffix(".json").read_text())["parts"]
    return status, parts


def test_parts_that_need_a_gpu_are_skipped_by_name(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    status, parts = run(tmp_path, "--parts", "kill,faiss-gpu")
    assert status == 0
    assert {name: part["reason"] for name, part in parts.items()} == {
        "kill": "needs a CUDA device",
        "faiss-gpu": "needs a CUDA device",
    }
    assert "kill: skipped (needs a CUDA device)" in capsys.readouterr().out


def test_a_part_that_fails_does_not_end_the_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The embedder's process is pointed at a directory of packages that breaks its imports."""
    broken = tmp_path / "broken" / "torch"
    broken.mkdir(parents=True)
    (broken / "__init__.py").write_text("raise ImportError('no torch today')\n")
    monkeypatch.setenv("PYTHONPATH", str(broken.parent))
    status, parts = run(tmp_path, "--parts", "embedder,kill")
    assert status == 1
    assert parts["embedder"]["state"] == "failed"
    assert "no torch today" in str(parts["embedder"]["reason"])
    assert parts["kill"]["state"] == "skipped"


def test_parts_beyond_the_budget_are_skipped_with_the_way_to_run_them(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    status, parts = run(tmp_path, "--parts", "sft", "--budget", "0")
    assert status == 0
    assert (
        parts["sft-14b"]["reason"] == "not within the budget of 0 s; run it alone: --parts sft-14b"
    )
    assert [part["state"] for part in parts.values()] == ["skipped", "skipped"]
    last = capsys.readouterr().out.splitlines()[-1]
    assert last == "not within 0 s; run these alone: --parts sft-8b,sft-14b"


@pytest.mark.slow
def test_the_end_of_the_budget_ends_a_part(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The part's process imports a torch that takes longer than the budget."""
    slow = tmp_path / "slow" / "torch"
    slow.mkdir(parents=True)
    (slow / "__init__.py").write_text("import time\ntime.sleep(3600)\n")
    monkeypatch.setenv("PYTHONPATH", str(slow.parent))
    status, parts = run(tmp_path, "--parts", "embedder", "--budget", "30")
    assert (status, parts["embedder"]["state"]) == (0, "skipped")
    assert str(parts["embedder"]["reason"]).startswith(
        "ended with the budget of 30 s; run it alone"
    )


def tool(folder: Path, monkeypatch: pytest.MonkeyPatch, *lines: str) -> None:
    """Put an ``nvidia-smi`` with these lines of output first on the path, and locks beside it."""
    path = folder / "nvidia-smi"
    text = "".join(f"echo '{line}'\n" for line in lines)
    path.write_text(f"#!/bin/sh\n{text}")
    path.chmod(0o755)
    monkeypatch.setenv("PATH", f"{folder}{os.pathsep}{os.environ['PATH']}")
    monkeypatch.setenv("STEEP_LOCK_DIR", str(folder / "locks"))
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)


def test_the_check_takes_one_free_gpu_of_several(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tool(tmp_path, monkeypatch, "H100, 81559, GPU-1a", "H100, 81559, GPU-2b")
    with one_gpu() as first:
        assert first["CUDA_VISIBLE_DEVICES"] == "0"
        with one_gpu() as second:
            assert second["CUDA_VISIBLE_DEVICES"] == "1"
            with pytest.raises(DependencyError, match=r"^GPUs 0, 1 are held by other runs on this"):
                one_gpu().__enter__()
            monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "GPU-2b")
            with pytest.raises(DependencyError, match=r"^GPU GPU-2b is held by other runs"):
                one_gpu().__enter__()
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "1,0")
    with one_gpu() as again:
        assert again["CUDA_VISIBLE_DEVICES"] == "1"


def test_packages_for_cpus_on_a_machine_with_a_gpu_are_told_with_the_set_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import torch

    if torch.version.cuda is not None:
        pytest.skip("this torch is built for CUDA")
    tool(tmp_path, monkeypatch, "NVIDIA H100 80GB HBM3, 81559, GPU-1a")
    with pytest.raises(DependencyError) as error:
        main(["--parts", "kill", "--page", str(tmp_path / "gpu.md")])
    assert str(error.value).endswith(
        "is built for CPUs, and this machine has a GPU (NVIDIA H100 80GB HBM3); run make setup-gpu "
        "VENV=.venv-gpu, then make gpu-check VENV=.venv-gpu"
    )


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("{", "not readable as JSON"),
        ("[]", "expected an object whose 'machine' is an object"),
        ('{"machine": "H100", "parts": {}}', "expected an object whose 'machine' is an object"),
        ('{"machine": {}, "parts": []}', "expected an object whose 'parts' is an object"),
        ('{"machine": {}, "parts": {"kill": 1}}', "part 'kill' is not a result of the check"),
    ],
)
def test_a_damaged_file_of_figures_is_one_sentence_before_anything_runs(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], text: str, problem: str
) -> None:
    (tmp_path / "gpu.json").write_text(text)
    with pytest.raises(InputError, match=r"gpu\.json: ") as error:
        run(tmp_path, "--parts", "kill")
    assert problem in str(error.value)
    assert str(error.value).endswith("; move the file away, and the check writes it again")
    assert capsys.readouterr().out == ""


def test_missing_packages_are_named() -> None:
    (part,) = chosen(["vllm-lora"])
    assert part.missing("cpu") == "needs a CUDA device"
    absent = type(part)("x", "", "", ("torch", "no_such_package", "nor_this"))
    assert absent.missing("cuda") == "missing: no_such_package, nor_this"


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        (["--parts", "sft,nothing"], "no part 'nothing'"),
        (["--device", "cpu"], "takes --shapes tiny"),
        (["--shapes", "tiny"], "measures nothing"),
    ],
)
def test_wrong_options_are_refused(options: list[str], problem: str) -> None:
    with pytest.raises(InputError, match=problem):
        main(options)


def test_without_a_gpu_the_check_is_one_sentence() -> None:
    import torch

    if torch.cuda.is_available():
        pytest.skip("this machine has a GPU")
    with pytest.raises(
        DependencyError, match=r"^torch .* finds no CUDA device; run this on"
    ) as error:
        main(["--parts", "kill"])
    assert "\n" not in str(error.value)
    assert error.value.exit_status == 2


def test_sizes_are_chosen_together_by_the_beginning_of_their_names() -> None:
    assert [part.name for part in chosen(["sft", "kill"])] == ["sft-8b", "kill", "sft-14b"]
    assert chosen([]) == list(PARTS)


def test_a_later_run_of_other_parts_keeps_the_figures(tmp_path: Path) -> None:
    page = tmp_path / "gpu.md"
    page.write_text(f"Before.\n\n{BEGIN}\nold\n{END}\nAfter.\n")
    about = {"device": "card", "memory_gib": 80, "torch": "2", "driver": "580", "packages": {},
             "measured": "2026-01-01 00:00", "commit": "abc"}  # fmt: skip
    row = {"name": "pairs", "value": 12345.6, "unit": "pairs/s", "expected": "", "holds": None}
    result = {"state": "done", "reason": "", "figures": [row], "seconds": 3.0}
    write_results(page, about, {"reranker-flag": result})
    skipped = {"state": "skipped", "reason": "late", "figures": [], "seconds": 0.0}
    write_results(page, about, {"kill": {**result, "figures": []}, "reranker-flag": skipped})
    text = page.read_text()
    assert text.startswith("Before.\n")
    assert text.endswith("After.\n")
    assert "old" not in text
    assert "| | pairs | 12,346 pairs/s |  |" in text
    assert "| **kill** |" in text
    write_results(page, {**about, "device": "another"}, {"kill": result})
    assert "reranker-flag" not in page.read_text()


def test_the_page_of_the_check_has_a_place_for_the_figures() -> None:
    text = (ROOT / "docs/gpu.md").read_text(encoding="utf-8")
    assert text.count(BEGIN) == text.count(END) == 1
