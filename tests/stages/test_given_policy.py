"""Stages ``start`` and ``given-policy``: policies that no stage of the run trained."""

from __future__ import annotations

import dataclasses
import shutil
from pathlib import Path

import pytest

from pipeline.core.errors import ConfigError
from pipeline.core.model_files import model_hash
from pipeline.rollout.policy import read_policy
from pipeline.run.context import StageContext
from pipeline.stages.given_policy import run, run_start
from pipeline.stages.train import run_round
from pipeline.training.lineage import checked_policy, read_lineage
from tests.llm.small_models import small_adapter, small_model
from tests.stages.fabricated_run import configuration
from tests.training.tiny_policy import Run, write_base

pytestmark = pytest.mark.filterwarnings("ignore::UserWarning")


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return small_model(tmp_path_factory.mktemp("model") / "base")


def context(folder: Path, base: Path, adapter: Path | None, **lora: int) -> StageContext:
    model = {"base": str(base)}
    output = folder / "output"
    output.mkdir(parents=True)
    config = configuration().model_copy(update={"runs_dir": str(folder / "runs")})
    values = config.model_dump() | {"model": model}
    values["lora"] |= lora
    return StageContext(
        config=type(config).model_validate(values),
        stage="start",
        output=output,
        checkpoint_dir=folder / "partial",
        inputs={} if adapter is None else {"adapter": adapter},
    )


def test_the_base_model_is_a_policy_without_an_adapter(tmp_path: Path, base: Path) -> None:
    stage = context(tmp_path, base, None)
    assert run_start(stage) == {"adapters": 0}
    policy = read_policy(stage.output)
    assert (policy.adapter, policy.fingerprint) == (None, model_hash(base))
    assert checked_policy(stage.output, stage.config.model.base, stage.config.hashes_file) == policy


def test_an_adapter_is_copied_so_that_its_origin_may_disappear(tmp_path: Path, base: Path) -> None:
    origin = small_adapter(base, tmp_path / "origin")
    stage = context(tmp_path, base, origin)
    named = checked_policy(origin, stage.config.model.base, stage.config.hashes_file).fingerprint
    assert run(stage) == {"adapters": 1}
    shutil.rmtree(origin)
    assert read_policy(stage.output).fingerprint == named
    assert (
        checked_policy(stage.output, stage.config.model.base, stage.config.hashes_file).fingerprint
        == named
    )


def test_a_policy_of_a_run_keeps_its_lineage(tmp_path: Path, base: Path) -> None:
    small_adapter(base, tmp_path / "first")
    first = context(tmp_path / "a", base, tmp_path / "first")
    run(first)
    again = context(tmp_path / "b", base, first.output)
    run(again)
    assert read_lineage(again.output) == read_lineage(first.output)


def test_an_adapter_of_another_shape_than_lora_is_refused_as_a_start(
    tmp_path: Path, base: Path
) -> None:
    origin = small_adapter(base, tmp_path / "origin")
    with pytest.raises(ConfigError, match=r"r, alpha, targets \(3, .* set lora to its values"):
        run_start(context(tmp_path, base, origin, r=3))


def test_round_1_from_the_base_model_trains_a_new_adapter(tmp_path: Path) -> None:
    """Its reference is the base model, which a new adapter equals before the first step."""
    trained = Run(tmp_path, write_base(tmp_path / "base"))
    trained.write_data()
    start = dataclasses.replace(trained.context("start", "start"), inputs={})
    run_start(start)
    stage = trained.context("train", "first", lora={"dropout": 0.0})
    stage = dataclasses.replace(stage, inputs={**stage.inputs, "policy": start.output})
    assert run_round(stage)["pairs"] == 8
    lineage = read_lineage(stage.output)
    assert lineage.parent == lineage.reference == model_hash(trained.base)
    assert lineage.policy != lineage.parent
    assert (stage.output / "adapter" / "adapter_model.safetensors").is_file()
