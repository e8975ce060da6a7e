"""Training with the base divided among two processes on a CPU, against one process with the whole base."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from pipeline.config import Sft
from pipeline.core.record_io import write_parquet
from pipeline.core.records import Trajectory
from pipeline.run.context import StageContext
from pipeline.stages.train import run_round, run_sft
from tests.training.test_grpo import sampled, steps
from tests.training.tiny_policy import Run, trained_run, weights_of

ALONE: dict[str, Any] = {"per_device_batch_size": 1, "learning_rate": 1e-3}
SHARDED: dict[str, Any] = {**ALONE, "processes": 2, "shard_base": True}


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Run:
    return trained_run(tmp_path_factory.mktemp("sharded"))


def log(context: StageContext) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((context.output / "log.json").read_text())
    return found


def assert_same_training(sharded: StageContext, alone: StageContext) -> None:
    """Weights to 1e-5 and losses of all steps to 1e-4."""
    import torch

    found, expected = weights_of(sharded.output), weights_of(alone.output)
    assert found.keys() == expected.keys()
    for name, value in found.items():
        torch.testing.assert_close(value, expected[name], rtol=0, atol=1e-5)
    losses = [[row["loss"] for row in log(each)["history"]] for each in (sharded, alone)]
    assert len(losses[0]) > 1
    assert losses[0] == pytest.approx(losses[1], rel=1e-4)


@pytest.mark.slow
@pytest.mark.parametrize("checkpointing", [False, True])
def test_sft_over_a_divided_base_is_sft_over_the_whole_one(run: Run, checkpointing: bool) -> None:
    names = [f"{how}-{checkpointing}" for how in ("sft-sharded", "sft-alone")]
    contexts = [
        run.context(
            "sft",
            name,
            lora={"dropout": 0.0},
            sft={**block, "gradient_checkpointing": checkpointing},
        )
        for name, block in zip(names, (SHARDED, ALONE), strict=True)
    ]
    for context in contexts:
        run_sft(context)
    assert_same_training(*contexts)
    held_out = [log(context)["test"]["loss"] for context in contexts]
    assert held_out[0] == pytest.approx(held_out[1], rel=1e-4)


@pytest.mark.slow
def test_dpo_over_a_divided_base_is_dpo_over_the_whole_one(run: Run) -> None:
    contexts = [
        run.context("train", f"dpo-{number}", lora={"dropout": 0.0}, dpo=block)
        for number, block in enumerate((SHARDED, ALONE))
    ]
    for context in contexts:
        run_round(context)
    assert_same_training(*contexts)


@pytest.mark.slow
def test_grpo_over_a_divided_base_is_grpo_over_the_whole_one(run: Run) -> None:
    (run.root / "score").mkdir()
    scored = [sampled(str(number), steps(number, 1)) for number in range(4)]
    write_parquet(run.root / "score" / "trajectories.parquet", scored, Trajectory)
    common = {"dtype": "float32", "batch_size": 2, "epochs": 2, "beta": 0.1}
    contexts = [
        run.context(
            "train", f"grpo-{number}", lora={"dropout": 0.0}, grammar="prograph", objective="grpo",
            rewards={"kind": "prograph"}, sampling={"temperature": 0.8}, grpo={**common, **block},
        )
        for number, block in enumerate((SHARDED, ALONE))
    ]  # fmt: skip
    for context in contexts:
        run_round(context)
    assert_same_training(*contexts)


@pytest.mark.slow
def test_processes_without_a_batch_for_the_reference_do_not_leave_the_others_alone(
    run: Run, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """Six pairs are three batches of two for two processes, which would wait for each other forever."""
    six = Run(tmp_path, run.base)
    six.write_data(pairs=6)
    shutil.copytree(run.root / "sft", tmp_path / "sft")
    context = six.context("train", "uneven", dpo={**SHARDED, "per_device_batch_size": 2})
    assert run_round(context)["pairs"] == 6
    assert "each of 2 processes holds 18,624 of 28,928 base weights" in capfd.readouterr().out


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"processes": 1}, "processes is 1; raise processes"),
        ({"processes": 2, "quantization": "4bit"}, "does not divide a base in 4bit"),
    ],
)
def test_a_base_that_cannot_be_divided_is_refused(change: dict[str, Any], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        Sft(learning_rate=1e-3, batch_size=4, shard_base=True, **change)
