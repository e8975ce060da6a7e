"""The examples of the how-to pages hold as they stand there."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from peft import PeftModel

from pipeline.config import load
from pipeline.core.records import Pair
from tasks.base import walk
from tasks.resolved import write_resolved
from tasks.run import task_for
from tests.cli.malformed_inputs import steep
from tests.cli.test_pair_preview import commit, scored
from tests.llm.small_models import small_adapter, small_model
from tests.published.data_files import write_data

ROOT = Path(__file__).resolve().parents[2]
HOWTO = ROOT / "docs" / "howto"
CONFIGS = ROOT / "configs"


def blocks(page: str, language: str) -> list[str]:
    text = (HOWTO / page).read_text(encoding="utf-8")
    found = re.findall(r"^```(\w*)\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)
    return [content for name, content in found if name == language]


@pytest.fixture
def own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with the files of the page about own data."""
    names = ("documents.jsonl", "questions.jsonl", "test.jsonl", "cold-start.jsonl")
    for name, text in zip(names, blocks("own-data.md", "json"), strict=True):
        (tmp_path / name).write_text(text, encoding="utf-8")
    configuration = blocks("own-data.md", "yaml")[0]
    (tmp_path / "own.yaml").write_text(configuration, encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_the_own_data_are_checked_and_read(own: Path) -> None:
    options = ["--config", "own.yaml", "--data", "."]
    assert steep(["check", *options])[0] == 0
    for stage in ("graph", "questions-sampling"):
        status, _, complaint = steep(["run", stage, *options])
        assert status == 0, complaint
    (statistics,) = own.glob("runs/own/store/graph/*/manifest.json")
    assert json.loads(statistics.read_text())["counts"]["triplets"] == 5


def test_own_questions_without_a_cold_start_need_no_decomposed_questions(own: Path) -> None:
    (own / "cold-start.jsonl").unlink()
    options = ["--config", "own.yaml", "--data", ".", "--set", "start=base", "--set", "data.sft=[]"]
    status, _, complaint = steep(["check", *options])
    assert (status, complaint) == (0, "")
    report = task_for("report", "own.yaml", ("start=base", "data.sft=[]"), ".")
    stages = {task.stage for task in walk(report, lambda one: one.inputs)}
    assert {"questions-sft", "sft-data", "sft"}.isdisjoint(stages)
    assert steep(["check", *options[:-4]])[0] == 2  # with a cold start the file is missing


@pytest.mark.parametrize(
    ("page", "base"),
    [
        ("judges.md", "embedded-hiprag.yaml"),
        ("../executors.md", "tearag-llama3-8b.yaml"),
        ("own-data.md", "embedded.yaml"),
    ],
)
def test_the_settings_of_a_page_are_valid(page: str, base: str, tmp_path: Path) -> None:
    found = blocks(page, "yaml")
    assert found
    for number, text in enumerate(found):
        file = tmp_path / f"{number}.yaml"
        own_base = text.startswith("base: ")
        lines = text.partition("\n")[2] if own_base else f"name: example\n{text}"
        file.write_text(f"base: {CONFIGS / base}\n{lines}", encoding="utf-8")
        assert not own_base or text.split()[1] == base
        load(file, (f"data.root={tmp_path}",))


def test_the_configuration_for_80_gb_fits_one_gpu(tmp_path: Path) -> None:
    (text,) = blocks("../gpu.md", "yaml")
    (tmp_path / "one-80gb.yaml").write_text(text.replace("base: ", f"base: {CONFIGS}/", 1))
    data = write_data(tmp_path / "data")
    few = ("--set", "sft_data.min_share=0")  # the data of the test are a few questions
    machine = ("--machine", "1x80,256", *few)
    options = ["--config", str(tmp_path / "one-80gb.yaml"), "--data", str(data)]
    status, printed, complaint = steep(["check", *options, *machine])
    assert (status, complaint) == (0, "")
    assert "no faults" in printed
    assert steep(["check", *options, "--machine", "1x24,256", *few])[0] == 2


def test_the_commands_of_the_page_about_rewards_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As they stand there, beside a run with scored trajectories."""
    program, in_python = blocks("own-reward.md", "python")
    of_a_run, of_a_file = blocks("own-reward.md", "")
    monkeypatch.chdir(tmp_path)
    pair = task_for("pair", "embedded", round=1)
    write_resolved(pair.run_settings)
    commit(pair.upstream()["score"], scored())
    (tmp_path / "searches.py").write_text(program)
    step = {"subquery": "Who?", "entities": [], "summary": "It is so.", "context": []}
    row = {
        "trajectory_id": "q/0@p", "question_id": "q", "dataset": "toy", "question": "Q?",
        "hop": "single", "answers": ["Rome"], "evidence": [], "grammar": "tearag",
        "output": "text", "steps": [step], "answer": "Rome", "format_ok": True,
    }  # fmt: skip
    rows = [row, {**row, "trajectory_id": "q/1@p", "output": "other", "format_ok": False}]
    (tmp_path / "trajectories.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    shell = f'set -euo pipefail\nsteep() {{ {sys.executable} -m pipeline.cli "$@"; }}\n'
    shell += f'python() {{ {sys.executable} "$@"; }}\n'
    quick = [line for line in of_a_run.splitlines() if not line.startswith("steep run")]
    assert len(quick) == len(of_a_run.splitlines()) - 1
    done = subprocess.run(
        ["bash", "-c", shell + "\n".join(quick) + "\n" + of_a_file],
        cwd=tmp_path, capture_output=True, text=True, check=False,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert "rewards.tearag.consistency: 0.1 -> 0.4" in done.stdout
    assert "1 · round 0 · format · Q?" in done.stdout
    names: dict[str, Any] = {}
    exec(in_python, names)
    assert names["pairs"]


def test_an_exported_policy_is_the_base_model_with_its_adapter(tmp_path: Path) -> None:
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    base = small_model(tmp_path / "base")
    small_adapter(base, tmp_path / "policy" / "adapter")
    (program,) = blocks("use-a-policy.md", "python")
    arguments = ["base", "policy", "merged"]
    subprocess.run(
        [sys.executable, "-c", program, *arguments], cwd=tmp_path, check=True, capture_output=True
    )
    ids = AutoTokenizer.from_pretrained(tmp_path / "merged")("the founder", return_tensors="pt")
    merged = AutoModelForCausalLM.from_pretrained(tmp_path / "merged", dtype=torch.float32)
    plain = AutoModelForCausalLM.from_pretrained(base, dtype=torch.float32)
    adapted = PeftModel.from_pretrained(plain, tmp_path / "policy" / "adapter")
    with torch.no_grad(), adapted.disable_adapter():
        unchanged = adapted(**ids).logits
    with torch.no_grad():
        expected, found = adapted(**ids).logits, merged(**ids).logits
    assert torch.allclose(found, expected, atol=1e-4)
    assert not torch.allclose(unchanged, expected, atol=1e-4)


def test_the_labels_of_the_exchange_page_cover_what_the_policy_wrote() -> None:
    (definition,) = (text for text in blocks("exchange.md", "python") if "def trained" in text)
    names: dict[str, object] = {}
    exec(definition, names)
    spans = [(0, 2, "model"), (2, 4, "observation"), (4, 5, "model")]
    assert names["trained"]([7, 8, 9, 10, 11], spans) == [7, 8, -100, -100, 11]  # type: ignore[operator]


def test_pairs_go_to_datasets_as_preferences(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from pipeline.core.record_io import write_parquet
    from pipeline.core.records import Message

    program = blocks("exchange.md", "python")[0]
    sides = {"chosen": [Message("assistant", "a")], "rejected": [Message("assistant", "b")]}
    pairs = [
        Pair(
            "q", [Message("user", "Q?")], **sides, chosen_id="q/0@p", rejected_id="q/1@p", kind=kind,
            chosen_rewards={}, rejected_rewards={}, policy="p", round=1, prompt_ids=[1],
            chosen_ids=[2], rejected_ids=[3], chosen_spans=[(0, 1, "model")],
            rejected_spans=[(0, 1, "model")],
        )
        for kind in ("format", "easy")
    ]  # fmt: skip
    write_parquet(tmp_path / "pairs" / "pairs.parquet", pairs, Pair)
    monkeypatch.chdir(tmp_path)
    environment = {"PATH": "/usr/bin:/bin", "HOME": str(tmp_path), "HF_HUB_OFFLINE": "1"}
    command = [sys.executable, "-c", program, "pairs"]
    subprocess.run(command, env=environment, check=True, capture_output=True)
    (line,) = (tmp_path / "preferences.jsonl").read_text().splitlines()
    assert json.loads(line) == {
        "prompt": [{"role": "user", "content": "Q?"}],
        "chosen": [{"role": "assistant", "content": "a"}],
        "rejected": [{"role": "assistant", "content": "b"}],
    }
