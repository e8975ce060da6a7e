"""What SFT and a round of DPO report while they train."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tasks.sft import run as run_sft
from tasks.train import run as run_round
from tests.recorded_progress import RecordedProgress

pytestmark = pytest.mark.filterwarnings("ignore::UserWarning")


def test_training_reports_steps_loss_and_margin(policy_0, tmp_path):
    run = policy_0.copy(tmp_path)
    progress = RecordedProgress()
    run_sft(replace(run.context("sft", "again"), progress=progress))
    assert progress.starts[-1] == (2, "steps", 0)  # 8 examples in batches of 4
    assert progress.done == 2
    assert progress.values["loss"] > 0

    progress = RecordedProgress()
    run_round(replace(run.context("train", "round-1"), progress=progress))
    units = [unit for _, unit, _ in progress.starts]
    assert units == ["encoded records", "records under the reference", "steps"]
    assert progress.starts[1] == (8, "records under the reference", 0)
    assert progress.starts[2] == (4, "steps", 0)  # 8 pairs, 2 epochs
    assert progress.done == 4
    assert {"loss", "margin", "accuracy"} <= progress.values.keys()
