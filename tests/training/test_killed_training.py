"""Training that is killed and continued gives the bytes of an uninterrupted run."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from pipeline.engine.context import StageContext
from pipeline.training.checkpoints import is_complete, last_checkpoint
from pipeline.training.trainer_args import Training, shared_arguments
from tasks.train import run as run_round
from tests.stages.divided import content
from tests.training.tiny_policy import Run

ROOT = Path(__file__).resolve().parents[2]
# 10 pairs in batches of 2: 5 steps per epoch, 8 steps, so the last epoch is not a whole one.
STEPS = {"batch_size": 2, "per_device_batch_size": 1, "round_epochs": [1.6]}


@pytest.fixture(scope="module")
def run(policy_0: Run, tmp_path_factory: pytest.TempPathFactory) -> Run:
    return policy_0.copy(tmp_path_factory.mktemp("killed"), pairs=10)


@pytest.fixture(scope="module")
def whole(run: Run) -> StageContext:
    """The context of a finished round of 8 steps; its checkpoints are still there."""
    context = run.context("train", "whole", dpo=STEPS)
    run_round(context)
    return context


@pytest.mark.slow
def test_killed_rounds_end_with_the_same_bytes(run: Run, whole: StageContext) -> None:
    """Real kills, while each file of a checkpoint is being written."""
    context = run.context("train", "killed", dpo=STEPS)
    description = run.root / "killed.json"
    description.write_text(json.dumps(context.to_json()))
    done = subprocess.run(
        [sys.executable, "-m", "tests.training.killed_runs", str(description)],
        cwd=ROOT, env={**os.environ, "PYTHONHASHSEED": "7"}, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("killed at") == 6
    assert content(context.output) == content(whole.output)


def test_a_round_that_is_killed_after_its_last_step_takes_no_more_steps(
    run: Run, whole: StageContext
) -> None:
    last = last_checkpoint(whole.checkpoint_dir)
    assert last is not None
    assert last.name == "checkpoint-8"
    expected = content(whole.output)
    shutil.rmtree(whole.output)
    whole.output.mkdir()
    run_round(whole)
    assert content(whole.output) == expected


@pytest.mark.parametrize("damage", ["deleted", "truncated", "flipped", "added"])
@pytest.mark.parametrize("name", ["adapter_model.safetensors", "trainer_state.json"])
def test_a_damaged_checkpoint_is_not_used(
    whole: StageContext, tmp_path: Path, name: str, damage: str
) -> None:
    last = last_checkpoint(whole.checkpoint_dir)
    assert last is not None
    older, newer = (tmp_path / "checkpoints" / f"checkpoint-{step}" for step in (4, 8))
    for copy in (older, newer):
        shutil.copytree(last, copy)
    assert last_checkpoint(tmp_path) == newer
    file = newer / name
    if damage == "deleted":
        file.unlink()
    elif damage == "truncated":
        file.write_bytes(file.read_bytes()[:-1])
    elif damage == "flipped":
        file.write_bytes(file.read_bytes()[:-1] + bytes([file.read_bytes()[-1] ^ 1]))
    else:
        (newer / f"{name}.tmp").write_bytes(b"")
    assert last_checkpoint(tmp_path) == older
    assert is_complete(older)


def test_checkpoints_close_a_logged_row(run: Run, tmp_path: Path) -> None:
    """Otherwise a continued run would log another mean for the row that the kill interrupted."""
    settings = run.context("train", "settings", dpo=STEPS).config.dpo
    for records in range(1, 3000, 7):
        training = Training(0, tmp_path)
        arguments = shared_arguments(settings, "dpo", training, epochs=1, records=records)
        saved, logged = arguments["save_steps"], arguments["logging_steps"]
        assert isinstance(saved, int)
        assert isinstance(logged, int)
        assert saved % logged == 0
