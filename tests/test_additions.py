"""What an addition touches: a stage is one file, a method one folder and its configuration, a reward
term and a data set two files each. Every test adds one to a copy of the code and uses it there.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from pipeline.core.shipped import ROOT

OUTPUT = (
    '<think>One.</think>\n<search>Who?</search>\n\n<information>Doc 1(Title: "A") B'
    "</information>\n\n<think>Two.</think>\n<answer>yes</answer>"
)
STAGE = """
from pipeline.engine.stage import LightTask


class Greets(LightTask):
    stage, help, reads = "greets", "a greeting", ("name",)


def run(context):
    (context.output / "greeting.txt").write_text(f"Hello, {context.config.name}")
    return {"greetings": 1}
"""


class Copy:
    """A copy of the code, in which commands run."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        for name in ("pipeline", "tasks", "configs"):
            shutil.copytree(
                ROOT / name, folder / name, ignore=shutil.ignore_patterns("__pycache__")
            )
        (folder / "data").symlink_to(ROOT / "data")

    def replace(self, file: str, old: str, new: str) -> None:
        path = self.folder / file
        text = path.read_text()
        assert text.count(old) == 1, f"{file}: {old}"
        path.write_text(text.replace(old, new))

    def python(self, *arguments: str, stdin: str = "") -> str:
        done = subprocess.run(
            [sys.executable, *arguments], cwd=self.folder, input=stdin, text=True, check=False,
            env={**os.environ, "PYTHONPATH": str(self.folder)}, capture_output=True,
        )  # fmt: skip
        assert done.returncode == 0, done.stderr
        return done.stdout

    def steep(self, *arguments: str, stdin: str = "") -> str:
        return self.python("-m", "pipeline.cli", *arguments, stdin=stdin)


@pytest.fixture
def copy(tmp_path: Path) -> Copy:
    return Copy(tmp_path)


def test_a_stage_is_one_file(copy: Copy) -> None:
    (copy.folder / "tasks" / "greets.py").write_text(STAGE)
    assert "greets" in copy.steep("run", "--list")
    folder = copy.steep("run", "greets", "--config", "configs/embedded.yaml").split()[-1]
    assert (copy.folder / folder / "greeting.txt").read_text() == "Hello, embedded"


@pytest.mark.slow
def test_a_method_is_one_folder_and_its_configuration(copy: Copy) -> None:
    folder = copy.folder / "pipeline" / "methods"
    shutil.copytree(folder / "search_r1", folder / "toy")
    for file in (folder / "toy").iterdir():
        text = file.read_text().replace("methods.search_r1", "methods.toy")
        file.write_text(text.replace('name = "search-r1"', 'name = "toy"'))
    copy.replace(
        "pipeline/methods/toy/grammar.py", 'ClassVar[str] = "search-r1"', 'ClassVar[str] = "toy"'
    )
    (copy.folder / "configs" / "toy.yaml").write_text(
        "base: embedded-search-r1.yaml\nname: toy\ngrammar: toy\n"
    )
    assert "toy" in copy.steep("config", "explain", "grammar", "--config", "configs/toy.yaml")
    row = json.dumps({"output": OUTPUT, "answers": ["yes"], "grammar": "toy"})
    (scored,) = copy.steep("score", "-", "--reward", "toy", stdin=row).splitlines()
    assert json.loads(scored)["rewards"] == {"answer": 1.0, "format": 1.0, "total": 1.0}


@pytest.mark.slow
def test_a_reward_term_is_two_files(copy: Copy) -> None:
    copy.replace(
        "pipeline/config/policy.py",
        '    subquery: Weight = Field(0.3, description="evidence matched by subqueries (eq. 9)")\n',
        '    subquery: Weight = Field(0.3, description="evidence matched by subqueries (eq. 9)")\n'
        '    brevity: Weight = Field(0.5, description="an answer of one word")\n',
    )
    reward = "pipeline/methods/tearag/reward.py"
    copy.replace(
        reward,
        '    process: Annotated[float, "Process (eq. 13)"]\n',
        '    brevity: Annotated[float, "Brevity"]\n    process: Annotated[float, "Process (eq. 13)"]\n',
    )
    copy.replace(
        reward,
        '        "summary": summary,\n',
        '        "summary": summary,\n'
        '        "brevity": float(len((trajectory.answer or "").split()) == 1),\n',
    )
    row = json.dumps({
        "answer": "yes", "answers": ["yes"], "hop": "multi", "evidence": ["A is B"], "steps": [],
        "format_ok": True,
    })  # fmt: skip
    rewards = json.loads(copy.steep("score", "-", stdin=row))["rewards"]
    assert (rewards["brevity"], rewards["process"], rewards["total"]) == (1.0, 0.5, 2.5)
    titles = "from pipeline.methods import method; print(method('tearag').reward_titles['brevity'])"
    assert copy.python("-c", titles).strip() == "Brevity"


def test_a_data_set_is_two_files(copy: Copy) -> None:
    copy.replace(
        "pipeline/knowledge/corpus/questions/native.py",
        '    "bamboogle": Native("multi", 2),\n',
        '    "bamboogle": Native("multi", 2),\n    "toyqa": Native("multi", 3),\n',
    )
    copy.replace(
        "pipeline/config/knowledge.py",
        '"bamboogle", "questions")',
        '"bamboogle", "toyqa", "questions")',
    )
    rows = copy.folder / "toy.jsonl"
    rows.write_text(json.dumps({"id": "1", "question": "Who?", "answer": "A"}) + "\n")
    read = (
        "import sys; from pipeline.config import QuestionFile\n"
        "from pipeline.knowledge.corpus.questions.load import load_questions\n"
        "file = QuestionFile(dataset='toyqa', path='toy.jsonl')\n"
        "(question,) = load_questions(file.path, file.dataset)\n"
        "print(question.question_id, question.hop, question.hops, question.answers)\n"
    )
    assert copy.python("-c", read).strip() == "toyqa-1 multi 3 ['A']"
