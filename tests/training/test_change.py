"""Training that changes nothing is an error, and short training has a learning rate."""

from __future__ import annotations

import json
import math
from pathlib import Path

import pytest

from pipeline.config import Lora, Sft
from pipeline.core.errors import TrainingError
from pipeline.training.change import trained_weights, training_record
from pipeline.training.history import History
from pipeline.training.lineage import read_lineage
from pipeline.training.lora import load_base, new_adapter
from pipeline.training.trainer_args import optimizer_steps, warmup_steps
from tasks.sft import run as run_sft
from tasks.train import run as run_round
from tests.training.tiny_policy import Run


@pytest.fixture(scope="module")
def run(policy_0: Run, tmp_path_factory: pytest.TempPathFactory) -> Run:
    return policy_0.copy(tmp_path_factory.mktemp("change"), pairs=4)


def test_a_round_of_one_step_trains(run: Run) -> None:
    context = run.context("train", "one", dpo={"round_epochs": [1]})
    run_round(context)
    lineage = read_lineage(context.output)
    assert lineage.policy != lineage.parent
    assert lineage.training is not None
    assert lineage.training["steps"] == 1
    assert lineage.training["highest_learning_rate"] == context.config.dpo.learning_rate
    assert 0 < lineage.training["relative_change"] < 1
    log = json.loads((context.output / "log.json").read_text())
    assert log["training"] == lineage.training
    assert log["mean_loss"] == pytest.approx(log["history"][0]["loss"])


def test_a_round_that_changes_no_weight_is_refused(run: Run) -> None:
    context = run.context("train", "nothing", dpo={"learning_rate": 1e-30})
    with pytest.raises(TrainingError, match=r"equal to its parent's after 2 .*dpo\.learning_rate"):
        run_round(context)
    assert not (context.output / "adapter").exists()


def test_weights_that_are_not_finite_and_a_rate_of_zero_are_refused(run: Run) -> None:
    import torch

    settings = Sft(learning_rate=1, batch_size=1, dtype="float32")
    model = new_adapter(load_base(run.base, settings, "sft"), Lora(), 0)
    before, history = trained_weights(model), History()
    with pytest.raises(TrainingError, match="sft: training took no optimizer step"):
        training_record(before, model, history, "sft")
    history.count_step(3, 0.0)
    with pytest.raises(TrainingError, match=r"rate was 0 in all 3 .*train more epochs"):
        training_record(before, model, history, "sft")
    history.count_step(4, 1.0)
    with torch.no_grad():
        next(value for name, value in model.named_parameters() if "lora_B" in name)[0] = math.nan
    with pytest.raises(TrainingError, match=r"not finite after 4 optimizer steps; lower sft\."):
        training_record(before, model, history, "sft")


def test_epochs_that_give_no_step_are_refused() -> None:
    assert optimizer_steps(5, 2, 1.5, "dpo") == 5  # 3 steps per epoch, 4.5 steps
    for epochs in (0.0, -1.0):
        with pytest.raises(TrainingError, match=rf"dpo.round_epochs is {epochs:g}, so 5 records"):
            optimizer_steps(5, 2, epochs, "dpo")


def test_warm_up_is_a_share_of_the_steps_and_less_than_one_step_is_none() -> None:
    assert [warmup_steps(0.03, steps) for steps in (1, 2, 33, 34, 100)] == [0, 0, 0, 2, 3]
    assert [warmup_steps(1.0, steps) for steps in (1, 2, 10)] == [0, 1, 9]


@pytest.mark.slow
def test_the_number_of_steps_is_that_of_the_trainer(run: Run, tmp_path: Path) -> None:
    """Trainer rounds up twice: the last batch of an epoch may be small, and so may the last epoch."""
    context = run.context(
        "sft", "steps", sft={"batch_size": 3, "per_device_batch_size": 3, "epochs": 1.5}
    )
    run_sft(context)
    training = read_lineage(context.output).training
    assert training is not None
    assert training["steps"] == optimizer_steps(8, 3, 1.5, "sft") == 5
