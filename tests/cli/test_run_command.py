"""``steep run`` ends with the result of the run, in a terminal and outside one."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from pipeline.cli.run import result_lines
from pipeline.engine.run import walk
from tasks import task_for
from tests.cli.malformed_inputs import finished
from tests.tasks.small_run import commit, commit_policy, settings

CONTROL = "steep run --set name=r-control --set pairs.terms=outcome-format"
PARTED = "SFT to Round 1: EM and CEM part, so EM alone misleads"
VERDICT = "In round 1 the process reward prefers right answers."


def row(policy: str, dataset: str, em: float, interval: list[float] | None, **more: Any) -> dict:
    return {
        "policy": policy, "dataset": dataset, "split": "test", "n": 400, "em": em, "cem": em + 0.1,
        "f1": em + 0.05, "words": 1.5, "osr": None, "usr": None, "ci": {"em": interval, "cem": interval}, **more,
    }  # fmt: skip


ROWS = [
    row("base", "all-questions", 0.0425, [0.03, 0.06]),
    row("base", "all", 0.0425, [0.03, 0.06]),
    row("sft", "nq", 0.1, None),
    row("sft", "musique", 0.4, None),
    row("sft", "multi-hop", 0.4, None),
    row("sft", "all-questions", 0.27, [0.23, 0.32]),
    row("sft", "all", 0.27, [0.2275, 0.3151]),
    row("sft", "all", 0.9, None, split="test/unseen"),
    row("round-1", "all-questions", 0.48, None),
    row("round-1", "all", 0.48, None),
]


def write(
    folder: Path, rows: list[dict], judges: tuple[str, ...] = (), average: str = "all"
) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "report.html").write_text("<html>")
    (folder / "metrics.json").write_text(json.dumps(rows))
    figures = {
        "average": average, "parted": [PARTED], "verdict": VERDICT, "control": CONTROL,
        "constant_judges": list(judges),
    }  # fmt: skip
    (folder / "report.json").write_text(json.dumps(figures))
    return folder


def test_the_result_is_the_answers_by_policy_the_verdict_and_where_to_look_next(
    tmp_path: Path,
) -> None:
    run = write(tmp_path / "r", ROWS, ("Judging of round 1: all 60 verdicts are 'no'",))
    assert list(result_lines(run)) == [
        "policy              EM  95 % interval        F1     CEM   words",
        "Base model         4.2  3.0 to 6.0          9.2    14.3    1.50",
        "Policy 0 (SFT)    27.0  22.8 to 31.5       32.0    37.0    1.50",
        "Policy 1          48.0                     53.0    58.0    1.50",
        "400 questions of test from 2 data sets, average over data sets; words are those of the answer",
        PARTED,
        VERDICT,
        "Judging of round 1: all 60 verdicts are 'no'",
        f"report:  {run}/report.html",
        f"browser: steep browse --config {run}/config.yaml",
        f"control (outcome and format rewards alone): {CONTROL}",
    ]


def test_judged_policies_have_an_interval_of_cover_em(tmp_path: Path) -> None:
    """HiPRAG's tables average over questions; the average over data sets differs here."""
    rows = [
        row("sft", "nq", 0.2, None),
        row("sft", "all-questions", 0.2, [0.1, 0.3], osr=0.05),
        row("sft", "all", 0.25, [0.2, 0.3], osr=0.06),
    ]
    run = write(tmp_path, rows, average="all-questions")
    assert list(result_lines(run))[:5] == [
        "policy              EM  95 % interval        F1     CEM  95 % interval     words",
        "Policy 0 (SFT)    20.0  10.0 to 30.0       25.0    30.0  10.0 to 30.0       1.50",
        "400 questions of test from 1 data set, average over questions; words are those of the answer",
        "Policy 0 (SFT)    25.0  20.0 to 30.0       30.0    35.0  20.0 to 30.0       1.50",
        "400 questions of test from 1 data set, average over data sets; words are those of the answer",
    ]


def test_a_run_that_stops_before_evaluation_names_its_report(tmp_path: Path) -> None:
    assert list(result_lines(write(tmp_path, [])))[:2] == [PARTED, VERDICT]


def test_a_whole_run_prints_its_result_last_and_a_stage_its_directory(
    model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    overrides = settings(model, 512, "rounds=0", "shards=1")
    report = task_for("report", "embedded", overrides)
    for task in walk(report):
        if task.stage == "sft":
            commit_policy(task, model, 0)
        elif task is report:
            task.directory.parent.mkdir(parents=True)
            task.store.commit(task.key, write(tmp_path / "written", ROWS), {"counts": {"rows": 1}})
        else:
            commit(task)

    options = [word for setting in overrides for word in ("--set", setting)]
    printed = finished("run", *options).splitlines()
    expected = list(result_lines(Path("runs/embedded")))
    assert printed[-len(expected) :] == expected
    assert expected[-3:-1] == [
        "report:  runs/embedded/report.html",
        "browser: steep browse --config runs/embedded/config.yaml",
    ]
    [directory] = finished("run", "corpus", *options).splitlines()
    assert directory.startswith("runs/embedded/store/corpus/")
