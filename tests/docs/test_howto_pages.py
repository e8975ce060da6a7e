"""The examples of the how-to pages hold as they stand there."""

from __future__ import annotations

import json
import os
import re
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from pipeline.config import load
from pipeline.core.record_io import as_json, write_jsonl
from pipeline.engine.run import write_resolved
from pipeline.engine.stage import walk
from tasks import task_for
from tests.cli.malformed_inputs import accepted, finished, steep
from tests.cli.test_audit_rewards import write_run
from tests.cli.test_pair_preview import commit, scored
from tests.llm.fake_endpoint import FakeEndpoint
from tests.published.data_files import write_data
from tests.training.tiny_policy import byte_tokenizer, pair, write_base

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


def test_the_own_data_are_checked(own: Path) -> None:
    finished("check", "--config", "own.yaml", "--data", ".")


@pytest.mark.slow
def test_the_own_data_are_read(own: Path) -> None:
    options = ["--config", "own.yaml", "--data", "."]
    for stage in ("graph", "questions-sampling"):
        finished("run", stage, *options)
    (statistics,) = own.glob("runs/own/store/graph/*/manifest.json")
    assert json.loads(statistics.read_text())["counts"]["triplets"] == 5


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_the_first_commands_of_the_page_find_and_answer(own: Path) -> None:
    (own / "own.yaml").unlink()
    found = {}
    for line in blocks("own-data.md", "")[0].splitlines():
        words = shlex.split(line, comments=True)[1:]
        as_json = ["--json"] if words[0] in ("search", "ask") else []
        status, found[words[0]], complaint = steep([*words, *as_json])
        assert status == 0, complaint
    assert "method: tearag, because 2 of 2 questions have evidence" in found["init"]
    [best, *_] = json.loads(found["search"])["results"]
    assert (best["title"], best["source"]) == ("Harbour Glassworks", "documents.jsonl")
    answered = json.loads(found["ask"])
    assert answered["policy"] == "base"
    assert {"answer", "steps", "sources"} <= answered.keys()


def test_own_questions_without_a_cold_start_need_no_decomposed_questions(own: Path) -> None:
    (own / "cold-start.jsonl").unlink()
    options = ["--config", "own.yaml", "--data", ".", "--set", "start=base", "--set", "data.sft=[]"]
    accepted("check", *options)
    report = task_for("report", "own.yaml", ("start=base", "data.sft=[]"), ".")
    stages = {task.stage for task in walk(report, lambda one: one.inputs)}
    assert {"questions-sft", "sft-data", "sft"}.isdisjoint(stages)
    assert steep(["check", *options[:-4]])[0] == 2  # with a cold start the file is missing


@pytest.mark.slow
def test_questions_are_synthesised_from_the_own_documents(own: Path) -> None:
    founder = "It was founded by Lina Marsh."
    glass = {
        "question": "Who founded the Harbour Glassworks?",
        "answer": "Lina Marsh",
        "evidence": founder,
    }
    lives = {
        "question": "What is the art of #1?",
        "answer": "glass artist",
        "evidence": "Lina Marsh is a glass artist.",
    }
    whole = {
        "question": "What is the art of the founder of the Harbour Glassworks?",
        "hops": [glass, lives],
    }

    def script(prompt: str, _: int) -> str:
        shown = [
            title for title in ("Harbour Glassworks", "Lina Marsh") if f'"{title}": ' in prompt
        ]
        if prompt.startswith("Write"):
            two = 'leads to "Lina Marsh"' in prompt
            one = 'Passage 1, "Harbour Glassworks"' in prompt
            return json.dumps(whole if two else glass if one else {"question": "What?"})
        asked = prompt.rpartition("Question: ")[2]
        known = {
            glass["question"]: ["Harbour Glassworks"],
            "What is the art of Lina Marsh?": ["Lina Marsh"],
            whole["question"]: ["Harbour Glassworks", "Lina Marsh"],
        }
        found = set(known[asked]) <= set(shown)
        answer = "Lina Marsh" if asked == glass["question"] else "glass artist"
        return json.dumps({"answer": answer if found else None})

    options = ["--config", "own.yaml", "--data", "."]
    command = next(
        line
        for text in blocks("own-data.md", "")
        for line in text.splitlines()
        if "synthesise" in line
    )
    with FakeEndpoint(script) as endpoint:
        words = shlex.split(command.replace("https://api.openai.com/v1", endpoint.url))[1:]
        assert steep(words[:-2])[0] == 2  # the graph is not complete
        finished("run", "graph", *options)
        os.environ.pop("OPENAI_API_KEY", None)
        status, _, complaint = steep([*words, "--json"])
        assert (status, "OPENAI_API_KEY" in complaint) == (2, True)
        printed = finished(*words[:-2], "--json")
    assert json.loads(printed)["questions"] == 2
    (settings,) = (text for text in blocks("own-data.md", "yaml") if "harbour/test" in text)
    (own / "more.yaml").write_text(f"base: own.yaml\nname: more\n{settings}")
    held_out = (
        "data.test=[{dataset: harbour, path: test.jsonl}]"  # of four documents none is held out
    )
    more = ["--config", "more.yaml", "--data", ".", "--set", held_out]
    finished("run", "questions-sft", *more)
    status, _, complaint = steep([*words[:-2], "--endpoint", "http://127.0.0.1:9/v1"])
    assert (status, "exists" in complaint) == (2, True)


@pytest.mark.slow
def test_own_questions_are_decomposed(own: Path) -> None:
    founder = "It was founded by Lina Marsh."

    def script(prompt: str, _: int) -> str:
        if not prompt.startswith("Decompose"):
            return json.dumps({"answer": "Lina Marsh"})
        passage = re.search(r'Passage (\d), "Harbour Glassworks"', prompt)
        asked = "Who founded the Harbour Glassworks?"
        hop = {"question": asked, "answer": "Lina Marsh", "evidence": founder}
        found = passage is not None and f"Question: {asked}" in prompt
        return json.dumps({"hops": [{**hop, "passage": int(passage[1])}] if found else []})

    options = ["--config", "own.yaml", "--data", "."]
    page = (HOWTO / "own-data.md").read_text(encoding="utf-8")
    command = re.search(r"`steep (decompose [^`]*)`", page)
    with FakeEndpoint(script) as endpoint:
        words = shlex.split(command[1].replace("URL", endpoint.url))
        assert steep(words)[0] == 2  # the index is not complete
        finished("run", "index", *options)
        status, _, complaint = steep(words)
    assert (status, "1 of 2 questions were decomposed" in complaint) == (0, True)
    sft = "data.sft=[{dataset: harbour, path: decomposed.jsonl}]"
    finished("run", "questions-sft", *options, "--set", sft)


def test_rejection_sampling_needs_no_decomposed_questions(own: Path) -> None:
    (own / "cold-start.jsonl").unlink()
    [ours] = (text for text in blocks("own-data.md", "yaml") if "rejection" in text)
    (own / "more.yaml").write_text(f"base: own.yaml\nname: more\n{ours}")
    accepted("check", "--config", "more.yaml", "--data", ".")
    made = task_for("sft", "more.yaml", (), ".")
    stages = [task.stage for task in walk(made, lambda one: one.inputs)]
    assert stages[-4:] == ["given-policy", "sft-sample", "sft-data", "sft"]


@pytest.mark.parametrize(
    ("page", "base"),
    [
        ("judges.md", "embedded-hiprag.yaml"),
        ("../executors.md", "tearag-llama3-8b.yaml"),
        ("own-data.md", "embedded.yaml"),
        ("own-tool.md", "embedded-tools.yaml"),
    ],
)
def test_the_settings_of_a_page_are_valid(page: str, base: str, tmp_path: Path) -> None:
    found = blocks(page, "yaml")
    assert found
    for number, text in enumerate(found):
        file = tmp_path / f"{number}.yaml"
        own_base = text.startswith("base: ")
        named = "\nname: " in f"\n{text}"
        lines = text.partition("\n")[2] if own_base else text
        lines += "" if named else "name: example\n"
        file.write_text(f"base: {CONFIGS / base}\n{lines}", encoding="utf-8")
        assert not own_base or text.split()[1] == base
        load(file, (f"data.root={tmp_path}",))


def test_the_configuration_for_80_gb_fits_one_gpu(tmp_path: Path) -> None:
    (text,) = blocks("../gpu.md", "yaml")
    (tmp_path / "one-80gb.yaml").write_text(text.replace("base: ", f"base: {CONFIGS}/", 1))
    data = write_data(tmp_path / "data")
    few = ("--set", "sft_data.min_share=0")  # the data of the test are a few questions
    machine = ("--machine", "1x80", *few)
    options = ["--config", str(tmp_path / "one-80gb.yaml"), "--data", str(data)]
    printed = accepted("check", *options, *machine)
    assert "no faults" in printed
    assert steep(["check", *options, "--machine", "1x24", *few])[0] == 2


def in_shell(commands: str, folder: Path) -> str:
    """What the commands print in ``folder``; each has to succeed."""
    shell = f'set -euo pipefail\nsteep() {{ {sys.executable} -m pipeline.cli "$@"; }}\n'
    shell += f'python() {{ {sys.executable} "$@"; }}\n'
    done = subprocess.run(
        ["bash", "-c", shell + commands], cwd=folder, capture_output=True, text=True, check=False,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_the_commands_of_the_page_about_rewards_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As they stand there, beside a run with scored trajectories."""
    program, in_python, _ = blocks("own-reward.md", "python")
    of_a_run, of_a_file, _ = blocks("own-reward.md", "")
    monkeypatch.chdir(tmp_path)
    pair = task_for("pair", "embedded", round=1)
    write_resolved(pair.run_settings)
    commit(pair.inputs["score"], scored())
    (tmp_path / "searches.py").write_text(program)
    step = {"subquery": "Who?", "entities": [], "summary": "It is so.", "context": []}
    row = {
        "trajectory_id": "q/0@p", "question_id": "q", "dataset": "toy", "question": "Q?",
        "hop": "single", "answers": ["Rome"], "evidence": [], "grammar": "tearag",
        "output": "text", "steps": [step], "answer": "Rome", "format_ok": True,
    }  # fmt: skip
    rows = [row, {**row, "trajectory_id": "q/1@p", "output": "other", "format_ok": False}]
    (tmp_path / "trajectories.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    quick = [line for line in of_a_run.splitlines() if not line.startswith("steep run")]
    assert len(quick) == len(of_a_run.splitlines()) - 1
    shown = ""
    for line in [*quick, *of_a_file.splitlines()]:
        if "|" in line:
            in_shell(line, tmp_path)
            continue
        printed = finished(*shlex.split(line, comments=True)[1:])
        shown += printed
    assert "rewards.tearag.consistency: 0.1 -> 0.4" in shown
    assert "1 · round 0 · format · Q?" in shown
    names: dict[str, Any] = {}
    exec(in_python, names)
    assert names["pairs"]


@pytest.mark.slow
def test_a_reward_of_ones_own_enters_the_benchmark_as_the_page_says(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    write_run()
    (tmp_path / "mine.py").write_text(blocks("own-reward.md", "python")[2])
    lines = blocks("own-reward.md", "")[2].splitlines()
    # A fabricated run has no policy; tests/cli/test_audit_rewards.py asks one.
    printed = in_shell("\n".join(line for line in lines if "--likelihood" not in line), tmp_path)
    assert "few steps" in printed
    assert "step.quotes" in (tmp_path / "audit.md").read_text()
    assert json.loads((tmp_path / "audit.json").read_text())


@pytest.mark.slow
def test_exported_pairs_train_a_policy_as_the_page_says(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The calls of both pages on files, and the program with TRL beside what they wrote."""
    monkeypatch.chdir(tmp_path)
    write_base(tmp_path / "policy")
    tokenizer = byte_tokenizer()
    write_jsonl("pairs.jsonl", [as_json(pair(tokenizer, number)) for number in range(8)])
    [exports] = (text for text in blocks("exchange.md", "") if "export pairs" in text)
    calls = [line.split("#")[0].split() for line in exports.splitlines()]
    for call in calls:
        words = call[1:] if "pairs.jsonl" in call else [*call[1:], "pairs.jsonl"]
        if "--round" in words:  # the pairs of the file in place of a run's
            del words[words.index("--round") : words.index("--round") + 2]
        finished(*words)
    program = blocks("exchange.md", "python")[0].replace(
        '"trained",', '"trained", use_cpu=True, bf16=False, report_to=[],'
    )
    environment = {**os.environ, "PYTHONPATH": "preferences", "HF_HOME": str(tmp_path / "cache")}
    done = subprocess.run(
        [sys.executable, "-c", program],
        env=environment,
        check=False,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    assert "'loss'" in done.stdout or "train_loss" in done.stdout
