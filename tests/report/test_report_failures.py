"""Failure modes in the metrics rows and on the report page."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

import pytest

from pipeline.evaluation.failures import LEGEND, FailureMode
from pipeline.evaluation.metrics import Outcome, measure, metrics_rows
from pipeline.look.report.page import run
from tests.report.test_report_page import Page
from tests.stages.fabricated_run import trajectory, write_run


def outcome(question: str, dataset: str, failure_mode: FailureMode) -> Outcome:
    measured = measure(trajectory(question, "Ostar", dataset=dataset), None)
    return replace(measured, failure_mode=failure_mode)


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


def test_the_page_explains_the_failure_modes_that_occur_and_gives_each_a_colour(
    tmp_path: Path,
) -> None:
    context = write_run(tmp_path, rounds=2, questions=12)
    run(context)
    page = (context.output / "report.html").read_text()
    [html] = re.findall(r'<section id="failure-modes">.*?</section>', page, re.DOTALL)
    text = Page(html).text
    occurring = {
        FailureMode.RIGHT,
        FailureMode.UNFINISHED,
        FailureMode.INEXACT,
        FailureMode.MISREAD,
    }
    for failure_mode in FailureMode:
        assert (LEGEND[failure_mode] in text) == (failure_mode in occurring)
    colors = set(re.findall(r"var\((--[a-z-]+)\)", html))
    assert {"--right", "--unfinished", "--inexact", "--misread"} <= colors
    style = page.split("</style>")[0]
    assert all(style.count(f" --{m.value.replace('_', '-')}: ") == 2 for m in FailureMode)
