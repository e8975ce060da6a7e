"""Judged steps, the share of correct search decisions, and judges compared with the truth."""

import pytest

from pipeline.core.records import Step
from pipeline.core.verdicts import JudgedStep, Verdict, steps_of
from pipeline.judges.search_errors import (
    calibrate,
    count_search_errors,
)
from tests.judges.known_judges import trajectory


def verdicts(kind: str, rulings: str, trajectory_id: str = "p") -> list[Verdict]:
    names = {"y": "yes", "n": "no", "?": "unknown"}
    return [
        Verdict(trajectory_id, n, kind, names[r], "m", f"{kind}{n}") for n, r in enumerate(rulings)
    ]


def test_steps_are_judged_except_after_a_retrieval_error():
    trajectories = [
        trajectory("t", "tearag", Step(subquery="Who?", summary="Ann.")),
        trajectory("h", "hiprag", Step(reasoning="r", search="Who?", conclusion="Ann."),
             Step(reasoning="I know.", conclusion="Bo.")),
        trajectory("e", "tearag", Step(subquery="Who?"), stop="retrieval_error"),
    ]  # fmt: skip
    assert steps_of(trajectories) == [
        JudgedStep("t", 0, "Who?", "", "Ann."),
        JudgedStep("h", 0, "Who?", "r", "Ann."),
        JudgedStep("h", 1, None, "I know.", "Bo."),
    ]
    assert [step.kind for step in steps_of(trajectories)] == ["over", "over", "under"]


def test_unknown_verdicts_are_excluded_from_the_share():
    errors = count_search_errors([*verdicts("over", "ynn?"), *verdicts("under", "yy??")])
    assert (errors.over.rate, errors.under.rate, errors.unknown_share) == (
        1 / 3,
        1.0,
        3 / 8,
    )


def test_judge_is_measured_on_steps_with_two_known_verdicts():
    over, under = calibrate(
        [*verdicts("over", "yyynnn?n"), *verdicts("under", "y")],
        [*verdicts("over", "yynnny?" + "?"), *verdicts("under", "n", "another trajectory")],
    )
    counts = over.true_yes, over.false_yes, over.true_no, over.false_no
    assert counts == (2, 1, 2, 1)
    assert (over.unknown, over.undecided) == (0, 2)  # undecided truths are excluded
    assert over.accuracy == pytest.approx(4 / 6)
    assert over.precision == pytest.approx(2 / 3)
    assert over.recall == pytest.approx(2 / 3)
    assert (under.n, under.accuracy, under.precision, under.recall) == (0, None, None, None)
