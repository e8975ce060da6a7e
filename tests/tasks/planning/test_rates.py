"""GPU hours from the assumed rates."""

import re
from pathlib import Path

import pytest

from pipeline.config import load
from pipeline.core.gpus import nominal_gpu
from pipeline.engine.plan.plan import make_plan, summary
from pipeline.engine.plan.sizes import sizes_of
from pipeline.engine.stage import walk
from tasks.report import Report
from tests.published.replacements import PUBLISHED
from tests.tasks.declared import stages


def test_without_gpus_the_hours_are_those_of_a_core_at_measured_tokens_a_second() -> None:
    """SmolLM2-135M: 189 tokens/s read, 91 written and 94 trained; 700 examples of 1,000 tokens."""
    small = "HuggingFaceTB/SmolLM2-135M-Instruct"
    tasks = stages("embedded", ["sft", "sample"], (f"model.base={small}",))
    plan = make_plan(tasks, sizes_of(tasks[0].run_settings), ())
    sft, sample = (stage.work.seconds for stage in plan.stages)
    assert sft == pytest.approx(700 * 1000 / 94, rel=1e-3)
    trajectories = 3 * 8 * (18 + 30 + 15)
    assert sample == pytest.approx(trajectories * (1250 / 189 + 250 / 91), rel=0.01)
    assert [line for line in summary(plan, ()) if "about 6.0 hours of one CPU core" in line]


def test_hours_are_those_of_the_models_without_the_waiting_of_the_paper_s_loop() -> None:
    """TeaRAG, table 9, has 376 minutes of sampling and 220 of rewards on 8 GPUs."""
    base = ("model.base=meta-llama/Meta-Llama-3-8B-Instruct",)
    tasks = stages("tearag-llama3-8b", ["sample", "score"], base)
    plan = make_plan(tasks, sizes_of(load("tearag-llama3-8b", base)), [nominal_gpu(80)] * 8)
    minutes = [stage.work.seconds / 60 / 8 for stage in plan.stages]
    assert minutes == pytest.approx([125, 9], rel=0.02)


def test_the_page_about_scale_has_the_gpu_hours_of_the_published_runs() -> None:
    page = Path(__file__).parents[3] / "docs" / "scale.md"
    row = next(line for line in page.read_text(encoding="utf-8").splitlines() if "| all |" in line)
    found = []
    for name in PUBLISHED:
        if name.endswith("one-gpu") or name.startswith("baseline-"):  # docs/gpu.md, choose.md
            continue
        sizes = sizes_of(load(name))
        tasks = walk(Report(config=name), lambda one: one.inputs)
        found.append(make_plan(tasks, sizes, [nominal_gpu(80)]).seconds / 3600)
    assert row == f"| all | {' | '.join(f'{value:,.0f}' for value in found)} |"


def test_a_paper_on_one_gpu_is_planned_within_a_day_as_its_page_says() -> None:
    name = "tearag-qwen3-4b-one-gpu"
    page = (Path(__file__).parents[3] / "docs" / "gpu.md").read_text(encoding="utf-8")
    tasks = walk(Report(config=name), lambda one: one.inputs)
    plan = make_plan(tasks, sizes_of(load(name)), [nominal_gpu(80)])
    assert list(plan.faults()) == []
    shown = {
        stage.stage: f"{stage.work.seconds / 3600:.1f}"
        for stage in plan.stages
        if stage.work.seconds > 180
    }
    for stage, hours_of in shown.items():
        assert re.search(rf"^\| `{stage}` \|.* \| {re.escape(hours_of)} \|", page, re.MULTILINE)
    total = plan.seconds / 3600
    [waited] = re.findall(r"^\| all, GPU and CPU \|.*\| ([\d.]+) \|", page, re.MULTILINE)
    [alone] = re.findall(r"^\| CPU alone \|.*\| ([\d.]+) \|", page, re.MULTILINE)
    assert float(waited) == pytest.approx(total + float(alone), abs=0.1)
    assert float(waited) <= 24
