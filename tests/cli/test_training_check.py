"""``steep check --training``: the same form of lines and exit status as ``steep check``, on finished pairs."""

from __future__ import annotations

import json
from dataclasses import asdict, replace
from pathlib import Path

import pytest

from pipeline.core.atomic import write_json
from pipeline.core.record_io import write_parquet
from pipeline.core.records import Pair, Question
from pipeline.training.preflight import Check
from tasks.base import StageTask
from tasks.run import task_for, walk
from tests.cli.malformed_inputs import steep
from tests.training.test_preflight import PAIR

SETTINGS = ("rounds=2",)
FOUND = Check("length", 0.0, 0.0, True, "0 of 3 examples (0.0%) are longer", "")


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> StageTask:
    """The pairs of both rounds are finished and no round is trained; those of round 2 repeat one."""
    monkeypatch.chdir(tmp_path)
    report = task_for("report", "embedded", SETTINGS)
    for task in walk(report):
        if task.stage in ("train", "evaluate-policy", "evaluate", "report"):
            continue
        written = tmp_path / "written" / task.label
        questions = [Question("q0", "nq", f"Who is {task.stage}?", ["x"], "single")]
        write_parquet(written / "questions.parquet", questions, Question)
        if task.stage == "pair":
            count = task.round_number or 0
            write_parquet(written / "pairs.parquet", [replace(PAIR)] * count, Pair)
        if task.stage == "sft":
            figures = {"data": "examples", "records": 3, "checks": [asdict(FOUND)]}
            write_json(written / "preflight.json", figures)
        task.directory.parent.mkdir(parents=True, exist_ok=True)
        task.store.commit(task.key, written, {"counts": {"rows": 1}})
    return report


def check(*arguments: str) -> tuple[int, str, str]:
    options = [word for setting in SETTINGS for word in ("--set", setting)]
    return steep(["check", "--training", *arguments, *options])


def test_data_beyond_a_limit_is_a_line_on_standard_error_and_exit_status_2(run: StageTask) -> None:
    status, printed, told = check()
    assert status == 2
    assert told == (
        "train-2: duplicates: 1 of 2 pairs (50.0%) repeat another one; each counts twice in the loss; remove "
        "repeated questions, or sample with a higher temperature\n"
    )
    assert "train-1: 1 pairs of runs/embedded/store/pair/" in printed
    assert "sft: 3 examples of runs/embedded/store/sft/" in printed
    assert "0 of 1 questions repeat one of test or validation" in printed
    assert printed.endswith("verdict: 1 of 11 checks are beyond a limit\n")


def test_one_round_without_faults_has_exit_status_0(run: StageTask) -> None:
    status, printed, told = check("--round", "1")
    assert (status, told) == (0, "")
    assert "train-2" not in printed
    assert "FAULT" not in printed
    assert printed.endswith("verdict: no faults\n")


def test_the_checks_are_printed_as_json(run: StageTask) -> None:
    status, printed, _ = check("--json")
    assert status == 2
    values = json.loads(printed)
    assert len(values["faults"]) == 1
    assert [(data["stage"], data["records"]) for data in values["data"]] == [
        ("sft", 3), ("train-1", 1), ("train-2", 2)
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        (["--training", "--round", "3"], "round is 3, and rounds is 2"),
        (
            ["--training", "--set", "seed=5"],
            "is finished; make some with `steep run pair --round 1 --config",
        ),
        (["--training", "--machine", "8x80"], "--machine cannot be used with --training"),
        (["--round", "1"], "--round cannot be used without --training"),
    ],
)
def test_what_cannot_be_checked_is_one_sentence(
    run: StageTask, arguments: list[str], problem: str
) -> None:
    status, printed, told = steep(["check", *arguments, "--set", "rounds=2"])
    assert (status, printed) == (2, "")
    assert problem in told
    assert told.count("\n") == 1
