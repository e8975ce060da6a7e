"""ProGraph-R1 on the report page: step rewards by turn, cost of value estimates, GRPO curves."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from pipeline.config import Config
from pipeline.core.records import Trajectory
from pipeline.engine.context import StageContext
from pipeline.look.report.data import progress_costs, turn_rewards
from pipeline.look.report.page import run
from pipeline.methods.prograph.method import METHOD
from pipeline.methods.prograph.reward import ProGraphRewards, step_rewards
from pipeline.methods.prograph.structure import Structure
from tests.report.test_report_page import Page
from tests.smallest import write_scored
from tests.stages.fabricated_run import trajectory, write_run

COST = {"states": 6, "distinct": 4, "continuations": 16, "generated_tokens": 900}


def scored(name: str, values: list[float] | None, *terms: tuple[float, float]) -> Trajectory:
    sampled = trajectory("q", "Ostar", name=name)
    sampled.rewards = step_rewards(sampled, [Structure(*pair) for pair in terms], values)
    return sampled


@pytest.fixture
def context(tmp_path: Path) -> StageContext:
    """A round of GRPO with two trajectories of two turns and one turn."""
    tearag = write_run(tmp_path, rounds=1)
    trajectories = [
        scored("a", [0.25, 0.5, 1.0], (0.5, 0.0), (1.0, 0.5)),
        scored("b", [0.25, 1.0], (0.0, 0.5)),
    ]
    write_scored(tearag.inputs["score-1"] / "trajectories.parquet", trajectories, ProGraphRewards)
    (tearag.inputs["score-1"] / "progress.json").write_text(json.dumps(COST))
    sample = tmp_path / "sample-1"
    sample.mkdir()
    (sample / "timing.json").write_text(json.dumps({"total": 1.0, "generated_tokens": 300}))
    row = {"step": 1, "loss": 0.1, "kl": 0.0, "entropy": 0.7, "clip_ratio/region_mean": 0.01}
    (tearag.inputs["train-1"] / "log.json").write_text(json.dumps({"history": [row]}))
    values = tearag.config.model_dump() | {
        "grammar": "prograph",
        "objective": "grpo",
        "grpo": {"learning_rate": 1e-3, "batch_size": 8},
    }
    inputs = {name: path for name, path in tearag.inputs.items() if name != "pair-1"}
    config = Config.model_validate(values)
    return replace(tearag, inputs={**inputs, "sample-1": sample}, config=config)


def test_unmeasured_terms_are_none_not_zero(context: StageContext) -> None:
    path = context.inputs["score-1"] / "trajectories.parquet"
    write_scored(path, [scored("a", None, (0.5, 0.0))], ProGraphRewards)
    (context.inputs["score-1"] / "progress.json").unlink()
    assert turn_rewards(context.inputs, METHOD.step_titles)[1][1]["progress"] is None
    assert progress_costs(context.inputs) == {}


def test_the_page_shows_turns_step_rewards_costs_and_grpo_curves(
    context: StageContext,
) -> None:
    run(context)
    text = Page((context.output / "report.html").read_text()).text
    assert "Turns per question" in text
    assert "Steps per question" not in text
    # Two trajectories have a first turn, and one of them a second.
    assert "1 Round 1 2 0.500 0.250 0.250 2.500 2 Round 1 1 0.500 1.000 0.500 3.000 " in text
    assert "Round 1 6 4 16 900 300 3.00" in text
    assert "Objective grpo uses no pairs" in text
    for title in ("GRPO loss", "KL to the sampling policy", "Clipped tokens", "Entropy"):
        assert title in text
    assert "Reward margin" not in text
