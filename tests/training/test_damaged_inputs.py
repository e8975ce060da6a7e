"""Damaged inputs of training are refused with one sentence, before any step."""

from __future__ import annotations

import dataclasses
import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from pipeline.core.errors import SteepError
from pipeline.core.record_io import write_parquet
from pipeline.core.records import Pair
from tasks.sft import run as run_sft
from tasks.train import run as run_round
from tests.training.tiny_policy import Run, byte_tokenizer, pair


@pytest.fixture(scope="module")
def run(policy_0: Run, tmp_path_factory: pytest.TempPathFactory) -> Run:
    return policy_0.copy(tmp_path_factory.mktemp("damaged"), pairs=4)


def truncate(path: Path) -> None:
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])


def make_nan(path: Path) -> None:
    from safetensors.torch import load_file, save_file

    weights = load_file(path)
    next(iter(weights.values()))[0] = float("nan")
    save_file(weights, path)


def of_another_base(path: Path) -> None:
    path.write_text(json.dumps({**json.loads(path.read_text()), "base_sha": "other"}))


def write(text: str) -> Callable[[Path], None]:
    return lambda path: path.write_text(text) and None


@pytest.mark.parametrize(
    ("file", "damage", "message"),
    [
        ("lineage.json", write('{"policy": "p"}'), "lineage.json: base: "),
        ("lineage.json", of_another_base, "train SFT again"),
        ("adapter/adapter_config.json", write("{}"), "json: expected a LoRA adapter"),
        ("adapter/adapter_model.safetensors", truncate, "not a readable safetensors file"),
        ("adapter/adapter_model.safetensors", make_nan, "holds NaN or infinity; save the adapter"),
    ],
)
def test_a_damaged_policy_is_refused(
    run: Run, tmp_path: Path, file: str, damage: Callable[[Path], Any], message: str
) -> None:
    shutil.copytree(run.root / "sft", tmp_path / "sft")
    damage(tmp_path / "sft" / file)
    context = run.context("train", "policy")
    context = dataclasses.replace(context, inputs={**context.inputs, "policy": tmp_path / "sft"})
    with pytest.raises(SteepError, match=message):
        run_round(context)


def test_a_damaged_pair_is_named(run: Run, tmp_path: Path) -> None:
    good = [pair(byte_tokenizer(), number) for number in (0, 1)]
    pairs = [good[0], dataclasses.replace(good[1], chosen_ids=[])]
    write_parquet(tmp_path / "pairs.parquet", pairs, Pair)
    context = run.context("train", "pairs")
    context = dataclasses.replace(context, inputs={**context.inputs, "pair": tmp_path})
    with pytest.raises(SteepError, match="record 2, pair c1 > r1: chosen: no token ids"):
        run_round(context)


def test_a_truncated_base_model_is_refused(run: Run, tmp_path: Path) -> None:
    shutil.copytree(run.base, tmp_path / "base")
    truncate(tmp_path / "base" / "model.safetensors")
    broken = Run(run.root, tmp_path / "base")
    with pytest.raises(SteepError, match="the model cannot be loaded"):
        run_sft(broken.context("sft", "broken-base"))
