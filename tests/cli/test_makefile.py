"""The Makefile's targets call the commands of the same names, with the options that it offers."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from tasks.base import STAGES
from tasks.evaluate_policy import OfPolicy
from tasks.questions import Questions

ROOT = Path(__file__).resolve().parents[2]


def recipe(*arguments: str) -> str:
    """The commands that ``make`` would run."""
    command = ["make", "--dry-run", "--no-print-directory", *arguments]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    return done.stdout


def test_every_stage_of_a_graph_run_is_a_target() -> None:
    kinds = {name: kind for name, kind in STAGES.items() if kind.named}
    parts = {name for name, kind in kinds.items() if issubclass(kind, OfPolicy | Questions)}
    for stage in kinds.keys() - parts - {"hypergraph", "hyper-index"}:
        options = ("CONFIG=c.yaml", "ROUND=2", "FORCE=1", "SET=a=1 b=2")
        lines = recipe(stage, *options).splitlines()
        assert (
            lines[-1].split()[1:]
            == (f"run {stage} --config c.yaml --set a=1 --set b=2 --round 2 --force").split()
        )


def test_a_number_of_workers_is_passed_on_although_it_is_zero() -> None:
    """`steep run` refuses it with a sentence; leaving it out would run."""
    assert recipe("report", "WORKERS=0").splitlines()[-1].split()[-2:] == ["--workers", "0"]


@pytest.mark.parametrize("target", ["status", "plan", "verify", "recall", "gc"])
def test_json_is_passed_on(target: str) -> None:
    assert recipe(target, "DATA=d", "JSON=1").splitlines()[-1].endswith(" --json")
    assert "--json" not in recipe(target, "DATA=d")


def test_policies_and_questions_turn_the_stage_into_an_evaluation_beside_the_run() -> None:
    chosen = ("POLICY=base 2", "QUESTIONS=q.json", "DATASET=nq", "LIMIT=40", "SELECT=random")
    options = ("CONFIG=c.yaml", "SET=seed=1", "JSON=1")
    command = recipe("evaluate", *options, *chosen).rpartition("steep ")[2].replace("\\\n", " ")
    expected = (
        "evaluate --policy base --policy 2 --questions q.json --dataset nq --limit 40 "
        "--select random --config c.yaml --set seed=1 --json"
    )
    assert command.split() == expected.split()


def test_runs_are_compared_by_name_or_directory() -> None:
    options = ("RUNS=a runs/b", "DATASET=multi-hop", "OUTPUT=t.md", "JSON=1")
    command = recipe("compare", *options).rpartition("steep ")[2]
    assert command.strip() == "compare a runs/b --dataset multi-hop --output t.md --json"


def test_watching_is_passed_on() -> None:
    assert recipe("status", "WATCH=1").splitlines()[-1].split()[-1] == "--watch"
    assert "--watch" not in recipe("status")


def test_targets_that_take_json_say_so() -> None:
    described = {line.split()[1] for line in help_lines() if "JSON=1" in line}
    assert described == {
        "evaluate", "data", "compare", "status", "plan", "verify", "recall", "gc",
    }  # fmt: skip


def test_data_sets_are_chosen_for_a_directory() -> None:
    command = recipe("data", "DATA=d", "DATASETS=nq popqa").splitlines()[-1].partition("steep ")[2]
    assert command.split() == ["data", "--data", "d", "--dataset", "nq", "--dataset", "popqa"]
    done = subprocess.run(
        ["make", "-s", "-o", ".venv/.from-lock", "data"], cwd=ROOT, capture_output=True, text=True
    )
    assert done.returncode == 2
    assert "error: no directory for the data sets; run make data DATA=DIR" in done.stderr


def test_browse_passes_its_options_on() -> None:
    options = ("HOST=localhost", "PORT=0", "EXPORT=p.html", "FILTER=kind=hard&q=a", "LIMIT=5")
    words = " ".join(recipe("browse", *options).replace("\\\n", " ").split())
    expected = "--host localhost --port 0 --export p.html --filter 'kind=hard&q=a' --limit 5"
    assert words.endswith(f"browse --config configs/embedded.yaml {expected}")


def help_lines() -> list[str]:
    command = ["make", "--no-print-directory", "help"]
    return subprocess.run(
        command, cwd=ROOT, capture_output=True, text=True, check=True
    ).stdout.splitlines()


def test_the_help_has_one_short_line_for_every_target() -> None:
    listed = [line.split()[1] for line in help_lines() if line.startswith("  make ")]
    phony = (ROOT / "Makefile").read_text().partition(".PHONY:")[2].partition("\n\n")[0]
    assert sorted(listed) == sorted(phony.replace("\\", "").split())
    assert all(len(line) < 100 for line in help_lines())


def test_the_help_groups_the_targets() -> None:
    groups = [line for line in help_lines() if line and not line.startswith(" ")]
    assert groups[:3] == ["Set up", "Run", "One stage, and what it needs"]
