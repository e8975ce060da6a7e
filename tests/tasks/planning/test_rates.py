"""The one set of rates: what is assumed, and what the GPU check puts in its place."""

import ast
import json
from pathlib import Path

import pytest
from tasks.planning.gpu_time import gpu_seconds, parameters

from benchmarks.gpu_check import encoders, policies, training
from benchmarks.gpu_check.catalogue import PARTS
from pipeline.config import load
from pipeline.core.errors import InputError
from pipeline.core.model_shapes import PUBLISHED
from tasks.planning.rates import Rates, rates
from tasks.planning.sizes import published_count, sizes_of

LLAMA = "meta-llama/Meta-Llama-3-8B-Instruct"
FIGURES = {
    "sft-8b": {"tokens": 4000.0},
    "sft-14b": {"tokens": 1.0},
    "embedder": {"float32": 1500.0, "bfloat16": 9000.0},
    "reranker-flag": {"pairs": 3000.0},
    "reranker-cross": {"pairs": 700.0},
    "vllm-lora": {"tokens": 6000.0},
}


def written(folder: Path, figures: dict[str, dict], **machine: object) -> Path:
    parts = {
        name: {"state": "done", "figures": [{"name": n, "value": v} for n, v in rows.items()]}
        for name, rows in figures.items()
    }
    (folder / "gpu.json").write_text(json.dumps({"machine": machine, "parts": parts}))
    return folder / "gpu.json"


def test_without_a_check_everything_is_assumed(tmp_path: Path) -> None:
    assert rates(tmp_path / "absent.json") == Rates()
    assert {origin for _, _, origin in Rates().rows()} == {
        "assumed", "measured on a CPU core (growth benchmark)",
        "measured on a CPU core (growth benchmark), continued",
    }  # fmt: skip


def test_each_measured_rate_replaces_the_assumed_one(tmp_path: Path) -> None:
    found = rates(written(tmp_path, FIGURES, device="NVIDIA H100", memory_gib=79.1))
    assert found.training == 6 * PUBLISHED[LLAMA].parameters * 4000
    e5 = PUBLISHED["intfloat/e5-base-v2"].linear_parameters
    assert found.embedding_float32 == 2 * e5 * 100 * 1500
    assert found.embedding_16bit == 6 * found.embedding_float32
    assert found.reranking_16bit / found.reranking_float32 == pytest.approx(3000 / 700)
    assert found.memory_gib == 79.1
    # At this speed the prompts could not even be read, so no rate of writing can be derived.
    assert found.writing == Rates().writing
    assert "writing" not in found.measured
    assert set(found.measured.values()) == {"measured on NVIDIA H100"}
    origins = {meaning: origin for meaning, _, origin in found.rows()}
    assert (
        origins["operations/s of a GPU in training: 40 % of an A100's"] == "measured on NVIDIA H100"
    )
    assert origins["tokens of a triplet"] == "assumed"


def test_the_speed_of_writing_is_what_reading_leaves(tmp_path: Path) -> None:
    found = rates(written(tmp_path, {"vllm-lora": {"tokens": 3000.0}}, device="NVIDIA A100"))
    llama = PUBLISHED[LLAMA]
    reading = 2 * llama.parameters * 256 * 256 / Rates().reading
    held = 2 * llama.parameters + 256 * (256 + 64) * 131_072  # weights, and keys and values
    assert found.writing == pytest.approx(128 * held / (256 * 128 / 3000 - reading))


def test_figures_of_a_cpu_and_of_failed_parts_count_for_nothing(tmp_path: Path) -> None:
    assert rates(written(tmp_path, FIGURES)) == Rates()
    path = written(tmp_path, FIGURES, device="NVIDIA H100")
    failed = json.loads(path.read_text())
    failed["parts"]["embedder"]["state"] = "failed"
    other = tmp_path / "failed.json"
    other.write_text(json.dumps(failed))
    assert rates(other).embedding_float32 == Rates().embedding_float32
    assert rates(other).training != Rates().training


def test_a_file_that_is_not_json_is_refused(tmp_path: Path) -> None:
    (tmp_path / "gpu.json").write_text("{")
    with pytest.raises(InputError):
        rates(tmp_path / "gpu.json")


@pytest.mark.parametrize(
    ("found", "problem"),
    [
        ({"machine": "H100 device"}, "machine is not an object"),
        ({"machine": {"device": "H100", "memory_gib": "80"}}, "a number memory_gib"),
        ({"machine": {"device": "H100"}, "parts": []}, "parts is not an object"),
        ({"parts": {"sft-8b": None}}, "part 'sft-8b' is not an object with figures"),
        (
            {"parts": {"sft-8b": {"state": "done", "figures": [{"name": "tokens"}]}}},
            "part 'sft-8b'",
        ),
    ],
)
def test_a_file_of_another_form_is_one_sentence(
    tmp_path: Path, found: dict[str, object], problem: str
) -> None:
    (tmp_path / "gpu.json").write_text(json.dumps(found))
    with pytest.raises(InputError, match=problem) as error:
        rates(tmp_path / "gpu.json")
    assert str(error.value).endswith(
        "; move the file away, and run make gpu-check to write it again"
    )


def test_the_figures_have_the_names_that_the_check_gives_them() -> None:
    """Names of parts, and texts of the calls that add figures in the modules of the check."""
    assert set(FIGURES) <= {part.name for part in PARTS}
    added: set[str] = set()
    for module in (training, policies, encoders):
        for node in ast.walk(ast.parse(Path(str(module.__file__)).read_text())):
            if isinstance(node, ast.Constant) and isinstance(node.value, str):
                added.add(node.value)
    assert {name for rows in FIGURES.values() for name in rows} <= added


def test_measured_rates_change_the_hours_of_a_run(tmp_path: Path) -> None:
    settings = load("tearag-llama3-8b")
    sizes = sizes_of(settings, published_count)
    assumed = gpu_seconds(settings, sizes, Rates())
    path = written(tmp_path, {"sft-8b": {"tokens": 100.0}}, device="NVIDIA A100")
    slow = gpu_seconds(settings, sizes, rates(path))
    assert slow["train"] == pytest.approx(
        assumed["train"] * Rates().training / rates(path).training
    )
    assert slow["sample"] == assumed["sample"]


def test_minutes_are_those_of_the_models_without_the_waiting_of_the_paper_s_loop() -> None:
    """TeaRAG, table 9, has 376 minutes of sampling and 220 of rewards."""
    settings = load("tearag-llama3-8b")
    seconds = gpu_seconds(settings, sizes_of(settings, published_count), Rates())
    minutes = {stage: seconds[stage] / 8 / 60 for stage in ("sample", "score")}
    assert minutes == pytest.approx({"sample": 125, "score": 9}, rel=0.02)


def test_models_of_unknown_shape_count_by_their_names() -> None:
    names = ("Qwen/Qwen2.5-14B-Instruct", "a-1.5b", "owner/model")
    assert [parameters(name) for name in names] == [14, 1.5, 8]
    of = {
        name: gpu_seconds(settings, sizes_of(settings, published_count), Rates())["train"]
        for name in (LLAMA, "owner/model-16B")
        for settings in [load("tearag-llama3-8b", (f"model.base={name}",))]
    }
    small, large = of.values()
    assert large == pytest.approx(2 * small)
