"""The stages that a round needs, and the settings that its training reads, by objective."""

from __future__ import annotations

from pathlib import Path

import pytest

from pipeline.core.errors import ConfigError
from pipeline.engine.run import walk
from tasks import task_for

EMBEDDED = Path(__file__).parents[2] / "configs" / "embedded.yaml"
HIPRAG = EMBEDDED.with_name("embedded-hiprag.yaml")
GRPO = ("objective=grpo", "grpo={learning_rate: 1.0e-4, batch_size: 16, per: trajectory}")


def train(*overrides: str, config: Path = EMBEDDED):  # type: ignore[no-untyped-def]
    return task_for("train", str(config), overrides)


@pytest.mark.parametrize("config", [EMBEDDED, HIPRAG])
def test_grpo_trains_on_the_cached_batch_without_pairs(config: Path) -> None:
    dpo, grpo = train(config=config), train(*GRPO, config=config)
    assert set(dpo.inputs) == {"pair", "policy"}
    assert set(grpo.inputs) == {"score", "policy"}
    assert grpo.inputs["score"].key == dpo.inputs["pair"].inputs["score"].key
    report = task_for("report", str(config), GRPO)
    assert not [task.label for task in walk(report) if task.stage == "pair"]
    assert {"train-3", "score-3"} <= report.inputs.keys()


def test_training_reads_only_the_settings_of_its_objective() -> None:
    dpo, grpo = train(), train(*GRPO)
    assert train(GRPO[1]).key == dpo.key != grpo.key
    assert train(*GRPO, "dpo.beta=0.1", "pairs.margin=0.2").key == grpo.key
    assert train(*GRPO, "grpo.epsilon=0.1").key != grpo.key
    changed = train(*GRPO, "sampling.temperature=0.9").key
    assert changed.settings["sampling.temperature"] != grpo.key.settings["sampling.temperature"]


def test_a_loss_makes_another_policy_of_the_same_pairs() -> None:
    dpo = train()
    for loss in ("apo_zero", "sft"):
        other = train(f"dpo.loss={loss}")
        assert other.key != dpo.key
        assert other.inputs["pair"].key == dpo.inputs["pair"].key


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (GRPO[:1], "needs the block grpo; add it with at least these"),
        ((*GRPO, "until=pair"), "until is pair, and objective grpo makes no pairs"),
        ((*GRPO, "sampling.top_p=0.9"), r"set sampling\.top_p to 1"),
        ((*GRPO, "grpo.per=step"), r"grammar tearag has no step rewards"),
    ],
)
def test_an_objective_that_cannot_be_trained_is_refused(
    overrides: tuple[str, ...], message: str
) -> None:
    with pytest.raises(ConfigError, match=message):
        _ = train(*overrides).settings
