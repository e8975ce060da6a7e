"""The Makefile's targets call the commands of the same names, with the options that it offers."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from tasks.run import STAGES

ROOT = Path(__file__).resolve().parents[2]


def recipe(*arguments: str) -> str:
    """The commands that ``make`` would run."""
    command = ["make", "--dry-run", "--no-print-directory", *arguments]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    return done.stdout


def test_every_stage_of_a_graph_run_is_a_target() -> None:
    for stage in STAGES.keys() - {"hypergraph", "hyper-index"}:
        options = ("CONFIG=c.yaml", "ROUND=2", "FORCE=1", "SET=a=1 b=2")
        lines = recipe(stage, *options).splitlines()
        assert (
            lines[-1].split()[1:]
            == (f"run {stage} --config c.yaml --set a=1 --set b=2 --round 2 --force").split()
        )


@pytest.mark.parametrize("target", ["status", "plan", "verify", "recall"])
def test_json_is_passed_on(target: str) -> None:
    assert recipe(target, "DATA=d", "JSON=1").splitlines()[-1].endswith(" --json")
    assert "--json" not in recipe(target, "DATA=d")


def test_targets_that_take_json_say_so() -> None:
    described = [
        line.partition(":")[0]
        for line in (ROOT / "Makefile").read_text().splitlines()
        if "##" in line and "JSON=1" in line
    ]
    assert described == ["status", "plan", "verify", "recall"]


def test_a_plan_takes_a_probe_and_a_review() -> None:
    assert recipe("plan", "PROBE=1").split()[-1] == "--probe"
    assert recipe("plan", "REVIEW=1", "WORKERS=3").split()[-3:] == ["--workers", "3", "--review"]
