"""Failure modes in the metrics rows and on the report page."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from pipeline.core.records import Trajectory
from pipeline.evaluation.excerpts import failed
from pipeline.evaluation.failures import LEGEND, FailureMode
from pipeline.evaluation.metrics import Outcome, measure, metrics_rows
from pipeline.report.page import run
from pipeline.stages.evaluate import merge_policies
from tests.report.test_report_page import HOSTILE, Page
from tests.stages.fabricated_run import trajectory, write_evaluation, write_run

SECTION = re.compile(r'<section id="failure-modes">.*?<section id="cost">', re.DOTALL)


def outcome(question: str, dataset: str, failure_mode: FailureMode) -> Outcome:
    return Outcome(
        question,
        dataset,
        None,
        0,
        0,
        0,
        1,
        True,
        2,
        2,
        40,
        60,
        "answer",
        failure_mode,
        1,
        2,
        "multi",
    )


def section(context_output: Path) -> str:
    match = SECTION.search((context_output / "report.html").read_text())
    assert match
    return match[0]


def test_shares_are_averaged_over_data_sets_and_counts_added_up() -> None:
    """One of three MuSiQue trajectories and the only NQ trajectory are misread: (1/3 + 1) / 2."""
    outcomes = [
        outcome("a", "musique", FailureMode.MISREAD),
        outcome("b", "musique", FailureMode.RIGHT),
        outcome("c", "musique", FailureMode.NOT_ASKED),
        outcome("d", "nq", FailureMode.MISREAD),
    ]
    failure_modes = {
        row["dataset"]: row["failure_modes"]
        for row in metrics_rows("sft", "test", outcomes, {}, resamples=9, seed=0)
    }
    assert list(failure_modes["musique"]) == [failure_mode.value for failure_mode in FailureMode]
    assert failure_modes["musique"]["misread"] == {"n": 1, "share": pytest.approx(1 / 3)}
    assert failure_modes["nq"]["right"] == {"n": 0, "share": 0.0}
    assert failure_modes["all"]["misread"] == {"n": 2, "share": pytest.approx(2 / 3)}
    assert sum(count["share"] for count in failure_modes["all"].values()) == pytest.approx(1)


def failures_of(directory: Path, trajectories: Sequence[Trajectory]) -> list[tuple[str, str]]:
    write_evaluation(directory, list(trajectories))
    facts, examples = failed([measure(t, None) for t in trajectories], directory)
    return [
        (fact["failure_mode"], example.question_id)
        for fact, example in zip(facts, examples, strict=True)
    ]


def test_two_failures_per_failure_mode_are_selected_from_alternating_data_sets(
    tmp_path: Path,
) -> None:
    names = ("musique", "musique", "nq", "nq")
    wrong = [trajectory(f"w{n}", "Vell", dataset=name) for n, name in enumerate(names)]
    cut = [trajectory(f"c{n}", None) for n in range(3)]
    right = [trajectory("r", "Ostar")]
    assert failures_of(tmp_path / "sft", [*right, *wrong, *cut]) == [
        ("unfinished", "c0"),
        ("unfinished", "c1"),
        ("misread", "w0"),
        ("misread", "w2"),
    ]


def test_the_page_shows_failure_modes_with_legend_numbers_and_examples(tmp_path: Path) -> None:
    context = write_run(tmp_path, rounds=2, questions=12)
    run(context)
    html = section(context.output)
    text = Page(html).text
    metrics = json.loads((context.output / "metrics.json").read_text())
    averages = [row for row in metrics if row["dataset"] == "all" and row["split"] == "test"]
    occurring = [
        m for m in FailureMode if any(row["failure_modes"][m.value]["n"] for row in averages)
    ]
    assert {
        FailureMode.RIGHT,
        FailureMode.UNFINISHED,
        FailureMode.INEXACT,
        FailureMode.MISREAD,
    } == set(occurring)
    for failure_mode in FailureMode:
        assert (LEGEND[failure_mode] in text) == (failure_mode in occurring)
    for row in averages:
        for failure_mode in occurring:
            count = row["failure_modes"][failure_mode.value]
            assert f" {100 * count['share']:.1f} {count['n']} " in text
    assert "Failed trajectories of Round 2" in text
    colors = set(re.findall(r"var\((--[a-z-]+)\)", html))
    assert {"--right", "--unfinished", "--inexact", "--misread"} <= colors
    style = (context.output / "report.html").read_text().split("</style>")[0]
    assert all(style.count(f" --{m.value.replace('_', '-')}: ") == 2 for m in FailureMode)


def test_text_of_documents_and_policies_is_escaped(tmp_path: Path) -> None:
    hostile = trajectory("q", f"Vell {HOSTILE}", document=HOSTILE)
    hostile = replace(hostile, evidence=[f"Vell: {HOSTILE}"], question=HOSTILE, dataset=HOSTILE)
    context = write_run(tmp_path / "run", rounds=0)
    shard = write_evaluation(tmp_path / "sft", [hostile])
    merge_policies({"sft": shard}, context.inputs["evaluate"], resamples=9)
    run(context)
    parsed = Page((context.output / "report.html").read_text())
    assert not {"script", "img"} & set(parsed.tags)
    assert (parsed.misnested, parsed.open) == ([], [])
    words = "".join(Page(section(context.output)).words)
    assert f"Evidence: Vell: {HOSTILE}" in words
    assert f"Vell {HOSTILE}" in words
