"""Stages ``start`` and ``given-policy``: policies that no stage of the run trained."""

from __future__ import annotations

import dataclasses
import json
import re
import shutil
from pathlib import Path

import pytest

from pipeline.config import Config
from pipeline.core.errors import ConfigError, InputError, SteepError
from pipeline.core.model_files import model_hash
from pipeline.engine.context import StageContext
from pipeline.rollout.policy import read_policy
from pipeline.training.lineage import (
    Lineage,
    checked_policy,
    policy_fingerprint,
    read_lineage,
)
from tasks.policy import file_name
from tasks.policy import run as run_policy
from tasks.sft import run as run_sft
from tasks.train import run as run_round
from tests.llm.small_models import small_adapter, small_model
from tests.stages.fabricated_run import configuration
from tests.stages.question_stages import stage_context
from tests.training.tiny_policy import Run, write_base

pytestmark = pytest.mark.filterwarnings("ignore::UserWarning")


def context(folder: Path, base: Path, adapter: Path | None, **lora: object) -> StageContext:
    values = configuration().model_dump()
    values |= {"runs_dir": str(folder / "runs"), "model": {"base": str(base)}}
    values["lora"] |= lora
    inputs = {} if adapter is None else {"adapter": adapter}
    return stage_context(folder, "start", Config.model_validate(values), inputs)


def as_teacher(context: StageContext) -> StageContext:
    """The context of the stage ``given-policy``, whose policy no round continues."""
    return dataclasses.replace(context, stage="given-policy")


def test_the_base_model_is_a_policy_without_an_adapter(tmp_path: Path, model: Path) -> None:
    stage = context(tmp_path, model, None)
    assert run_policy(stage) == {"adapters": 0}
    policy = read_policy(stage.output)
    assert (policy.adapter, policy.fingerprint) == (None, model_hash(model))
    assert checked_policy(stage.output, stage.config.model.base, stage.config.hashes_file) == policy


def test_an_adapter_is_copied_so_that_its_origin_may_disappear(tmp_path: Path, model: Path) -> None:
    origin = small_adapter(model, tmp_path / "origin")
    stage = context(tmp_path, model, origin)
    named = checked_policy(origin, stage.config.model.base, stage.config.hashes_file).fingerprint
    assert run_policy(as_teacher(stage)) == {"adapters": 1}
    shutil.rmtree(origin)
    assert read_policy(stage.output).fingerprint == named
    assert (
        checked_policy(stage.output, stage.config.model.base, stage.config.hashes_file).fingerprint
        == named
    )


def test_an_adapter_of_another_shape_than_lora_is_refused_as_a_start(
    tmp_path: Path, model: Path
) -> None:
    origin = small_adapter(model, tmp_path / "origin")
    with pytest.raises(ConfigError, match=r"r, alpha, targets \(3, .* set lora to its values"):
        run_policy(context(tmp_path, model, origin, r=3))


@pytest.mark.parametrize("setting", [{"bias": "all"}, {"ensure_weight_tying": True}])
def test_an_adapter_that_leaves_no_place_for_the_reference_is_refused_as_a_start(
    setting: dict, tmp_path: Path, model: Path
) -> None:
    origin = small_adapter(model, tmp_path / "origin")
    file = origin / "adapter_config.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | setting))
    stage = context(tmp_path, model, origin, targets=["q_proj", "v_proj"])
    with pytest.raises(SteepError, match=rf"{next(iter(setting))}: .*no place for the reference"):
        run_policy(stage)


def test_round_1_from_the_base_model_trains_a_new_adapter(tmp_path: Path) -> None:
    """Its reference is the base model, which a new adapter equals before the first step."""
    trained = Run(tmp_path, write_base(tmp_path / "base"))
    trained.write_data()
    start = dataclasses.replace(trained.context("start", "start"), inputs={})
    run_policy(start)
    stage = trained.context("train", "first", lora={"dropout": 0.0})
    stage = dataclasses.replace(stage, inputs={**stage.inputs, "policy": start.output})
    assert run_round(stage)["pairs"] == 8
    lineage = read_lineage(stage.output)
    assert lineage.parent == lineage.reference == model_hash(trained.base)
    assert lineage.policy != lineage.parent
    assert (stage.output / "adapter" / "adapter_model.safetensors").is_file()


def with_lineage(directory: Path, base: Path, **form: object) -> Path:
    """A policy whose lineage says what it was trained to write."""
    adapter = small_adapter(base, directory / "adapter")
    sha = model_hash(base)
    Lineage(
        policy=policy_fingerprint(adapter, sha), base=str(base), base_sha=sha, parent=None,
        reference=None, round=0, method="sft", settings={}, seed=0, counts={}, **form,
    ).write(directory)  # fmt: skip
    return directory


TEMPLATE = {"sha256": "0" * 16, "thinking": None, "date": "x"}
TRAINED = [
    ({"grammar": "hiprag", "format": "tags"}, "hiprag in format tags.* has grammar tearag"),
    ({"grammar": "tearag", "format": "tools"}, "format tools.*set grammar: tearag.*format: tools"),
    ({"chat_template": TEMPLATE}, "under the chat template"),
]


@pytest.mark.parametrize(("form", "problem"), TRAINED, ids=["grammar", "format", "chat template"])
@pytest.mark.parametrize("part", ["", "adapter"])
def test_a_policy_that_was_trained_to_write_something_else_is_refused(
    form: dict, problem: str, part: str, tmp_path: Path, model: Path
) -> None:
    """Also if the adapter is named alone, where the lineage is beside it."""
    policy = with_lineage(tmp_path / "policy", model, **form)
    with pytest.raises(SteepError, match=problem):
        run_policy(context(tmp_path / "run", model, policy / part))


def test_a_merged_policy_as_the_base_model_keeps_what_it_was_trained_to_write(
    tmp_path: Path,
) -> None:
    base = small_model(tmp_path / "base")
    (base / "lineage.json").write_text('{"policy": "p", "grammar": "search-r1", "format": "tags"}')
    with pytest.raises(InputError, match="grammar search-r1 in format tags"):
        run_policy(context(tmp_path / "run", base, None))


def test_an_adapter_without_a_lineage_passes_with_a_note(
    tmp_path: Path, model: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    origin = small_adapter(model, tmp_path / "origin")
    run_policy(as_teacher(context(tmp_path, model, origin)))
    assert f"{origin} does not say which grammar and format" in capsys.readouterr().out


def test_training_writes_the_grammar_the_format_and_the_template_into_the_lineage(
    tmp_path: Path,
) -> None:
    trained = Run(tmp_path, write_base(tmp_path / "base"))
    trained.write_data()
    stage = trained.context("sft", "sft")
    run_sft(stage)
    lineage = read_lineage(stage.output)
    assert (lineage.grammar, lineage.format) == ("tearag", "tags")
    assert len(lineage.chat_template["sha256"]) == 16
    start = dataclasses.replace(trained.context("start", "start"), inputs={"adapter": stage.output})
    assert run_policy(start) == {"adapters": 1}
    assert read_lineage(start.output) == lineage


def test_names_of_policies_give_one_file_each() -> None:
    names = ["round-1", *["a-b", "a b", "a/b", "/a-b", "-a-b", "...", "///", "é", "é"], "x" * 200]
    names += ["y" + "x" * 199, "x" * 100]
    files = [file_name(name) for name in names]
    assert len(set(files)) == len(names)
    assert (files[0], files[1]) == ("round-1", "a-b")
    assert all(0 < len(name) < 110 and re.fullmatch(r"\w[\w.-]*", name) for name in files)
