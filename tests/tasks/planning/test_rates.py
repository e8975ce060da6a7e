"""The one set of rates: what is assumed, and what the GPU check puts in its place."""

import ast
import json
from dataclasses import replace
from pathlib import Path

import pytest
from tasks.planning.rates import Rates, rates

from benchmarks.gpu_check import encoders, policies, training
from benchmarks.gpu_check.catalogue import PARTS
from pipeline.config import load
from pipeline.core.errors import InputError
from pipeline.core.gpus import nominal_gpu
from pipeline.core.model_shapes import PUBLISHED
from tasks.base import walk
from tasks.planning.clock import parameters
from tasks.planning.plan import make_plan
from tasks.planning.sizes import published_count, sizes_of
from tasks.report import Report
from tests.tasks.declared import stages

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


def hours(chosen: Rates, *names: str, base: str = LLAMA, sampled: int = 10_000) -> list[float]:
    """GPU hours of the named stages of TeaRAG, by ``chosen`` rates, for ``sampled`` questions."""
    overrides = (f"model.base={base}",)
    sizes = sizes_of(load("tearag-llama3-8b", overrides), published_count)
    sizes = replace(sizes, questions={**sizes.questions, "sampling": sampled})
    tasks = stages("tearag-llama3-8b", names, overrides)
    plan = make_plan(tasks, sizes, [nominal_gpu(80)] * 8, chosen)
    return [stage.gpu_seconds / 3600 for stage in plan.stages]


def test_without_a_check_everything_is_assumed(tmp_path: Path) -> None:
    assert rates(tmp_path / "absent.json") == Rates()


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
    slow = rates(written(tmp_path, {"sft-8b": {"tokens": 100.0}}, device="NVIDIA A100"))
    assumed, measured = (hours(chosen, "sample", "train") for chosen in (Rates(), slow))
    assert measured[1] == pytest.approx(assumed[1] * Rates().training / slow.training)
    assert measured[0] == assumed[0]


def test_gpu_hours_grow_with_the_questions() -> None:
    few, more = (hours(Rates(), "index", "sample", sampled=n) for n in (100, 200))
    assert more == pytest.approx([few[0], 2 * few[1]])


def test_hours_are_those_of_the_models_without_the_waiting_of_the_paper_s_loop() -> None:
    """TeaRAG, table 9, has 376 minutes of sampling and 220 of rewards on 8 GPUs."""
    minutes = [60 / 8 * one for one in hours(Rates(), "sample", "score")]
    assert minutes == pytest.approx([125, 9], rel=0.02)


def test_models_of_unknown_shape_count_by_their_names() -> None:
    names = ("Qwen/Qwen2.5-14B-Instruct", "a-1.5b", "owner/model")
    assert [parameters(name) for name in names] == [14, 1.5, 8]
    small, large = (hours(Rates(), "train", base=name)[0] for name in (LLAMA, "owner/model-16B"))
    assert large == pytest.approx(2 * small)


RUNS = (
    "tearag-llama3-8b", "tearag-qwen2.5-14b", "hiprag-qwen2.5-3b", "hiprag-qwen2.5-7b",
    "prograph-qwen2.5-3b", "prograph-qwen2.5-7b",
)  # fmt: skip


def test_the_page_about_scale_has_the_gpu_hours_of_the_published_runs() -> None:
    page = Path(__file__).parents[3] / "docs" / "scale.md"
    row = next(line for line in page.read_text(encoding="utf-8").splitlines() if "| all |" in line)
    found = []
    for name in RUNS:
        sizes = sizes_of(load(name), published_count)
        tasks = walk(Report(config=name), lambda one: one.inputs)
        found.append(make_plan(tasks, sizes, [nominal_gpu(80)], Rates()).gpu_seconds / 3600)
    assert row == f"| all | {' | '.join(f'{value:,.0f}' for value in found)} |"
