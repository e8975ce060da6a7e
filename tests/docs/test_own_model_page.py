"""*Bring your own model*: its commands run, and its table has the figures that ``steep plan`` gives."""

from __future__ import annotations

import json
import shlex
from pathlib import Path
from typing import Any

import pytest

from pipeline.config import load
from pipeline.config.presets import preset_of
from tests.cli.malformed_inputs import accepted, finished, steep
from tests.docs.test_choose_page import GIB, rows
from tests.docs.test_howto_pages import HOWTO, blocks

PAGE = "own-model.md"


TABLE = rows(HOWTO / PAGE)


def commands() -> dict[str, list[str]]:
    """The words of each command after ``steep``, by the first."""
    lines = [shlex.split(line, comments=True) for line in blocks(PAGE, "")[0].splitlines()]
    return {words[1]: words[1:] for words in lines if words[0] == "steep"}


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Ten documents, and ten questions of the page's form."""
    row = json.loads(blocks(PAGE, "json")[0])
    (tmp_path / "docs").mkdir()
    written = [row]
    for number in range(10):
        name, title = f"Person {number}", f"Workshop {number}"
        fact = f"It was founded by {name}."
        (tmp_path / "docs" / f"{number}.md").write_text(f"# {title}\n\nA workshop. {fact}\n")
        asked = row["question"].replace("the Harbour Glassworks", title)
        written.append({"question": asked, "answer": name, "evidence": [f"{title}: {fact}"]})
    (title, _, fact) = row["evidence"][0].partition(": ")
    (tmp_path / "docs" / "harbour.md").write_text(f"# {title}\n\n{fact}\n")
    (tmp_path / "questions.jsonl").write_text("".join(json.dumps(one) + "\n" for one in written))
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_the_page_leads_to_a_cold_start_without_faults(folder: Path) -> None:
    page = commands()
    printed = finished(*page["init"])
    assert "half of them, by the seed, serve the cold start" in printed
    printed = accepted(*page["check"])
    assert "of one CPU core" in printed
    assert "tearag fits" not in printed  # it could not have this cold start
    for setting in ("sft.learning_rate=0.008", "sft_data.sizes={2: 4}"):
        assert steep([*page["check"], "--set", setting])[0] == 2


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_the_model_of_the_page_is_trained_and_answers(folder: Path) -> None:
    """The page's commands; of its ``steep run`` the cold start alone."""
    page = commands()
    for words in (page["init"], ["run", "index", *page["run"][-2:]], [*page["ask"], "--json"]):
        printed = finished(*words)
    answered = json.loads(printed)
    assert (answered["policy"], {"answer", "format_ok"} <= answered.keys()) == ("base", True)
    finished("run", "sft", *page["run"][-2:])
    (manifest,) = folder.glob("runs/own/store/sft/*/manifest.json")
    assert json.loads(manifest.read_text())["counts"]["examples"] > 0


def planned(base: str, gpu: str) -> tuple[dict[str, Any], dict[str, Any]]:
    """The plan of the table, and the sums of its stages."""
    words = ["--docs", "documents.jsonl", "--questions", "questions.jsonl", "--base", base]
    finished("init", "own", *words, "--gpu", gpu, "-o", f"{gpu}.yaml")
    options = ["--set", "rounds=1", "--set", "sampling.samples=8", "--json"]
    options += ["--machine", f"1x{gpu}"] if gpu != "0" else []
    printed = accepted("plan", "--config", f"{gpu}.yaml", *options)
    plan = json.loads(printed)["plan"]
    return plan, {stage["stage"]: stage for stage in plan["stages"]}


SHORT = {"HuggingFaceTB/SmolLM2-135M-Instruct"}


@pytest.mark.parametrize(
    "name", [pytest.param(one, marks=[pytest.mark.slow] * (one not in SHORT)) for one in TABLE]
)
def test_a_row_has_the_figures_of_the_plan(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    text = "word " * 90
    documents = [{"title": f"T{n}", "text": f"The answer is A{n}. {text}"} for n in range(1000)]
    questions = [
        {"question": f"What is {n}?", "answer": f"A{n}", "evidence": [f"T{n}: The answer is A{n}."]}
        for n in range(800)
    ]
    for file, written in (("documents", documents), ("questions", questions)):
        lines = "".join(json.dumps(one) + "\n" for one in written)
        (tmp_path / f"{file}.jsonl").write_text(lines)
    preset, cores, least, memory, hours = TABLE[name]
    assert preset == preset_of(name)[0].name
    on_cpu, _ = planned(name, "0")
    assert float(cores) == pytest.approx(on_cpu["cpu_hours"], rel=0.05)
    cold_start = load(tmp_path / "0.yaml").sft_data.sizes
    assert f"{cold_start[1]} examples" in (HOWTO / PAGE).read_text(encoding="utf-8")
    on_gpu, stages = planned(name, least)
    assert float(hours) == pytest.approx(on_gpu["gpu_hours"], rel=0.05)
    assert float(memory) == pytest.approx(stages["train"]["device_bytes"] / GIB, rel=0.02)
    smaller = ["--base", name, "--gpu", str(int(least) - 1), "-o", "smaller.yaml"]
    assert steep(["init", "own", "--docs", "documents.jsonl", *smaller])[0] == 2
