"""AUC, intervals and calibration of rewards against the truth."""

from __future__ import annotations

import random
from dataclasses import replace

import numpy as np
import pytest

from pipeline.core.records import Trajectory
from pipeline.evaluation.reward_audit import AuditRow, audit, audited, tables
from pipeline.evaluation.term_counts import Judged, TermCounts
from tests.closed_world.test_truth import CHAIN, GOLD, OTHER, TRUTH, solved, step


def counted(questions: list[Judged]) -> TermCounts:
    counts = TermCounts()
    for judged in questions:
        counts.add_question(judged)
    return counts


def drawn(rng: random.Random, number: int) -> list[Judged]:
    """Questions that differ in difficulty, with eight noisy values each."""
    questions = []
    for _ in range(number):
        ease = rng.random()
        truths = [rng.random() < ease for _ in range(8)]
        questions.append([(rng.gauss(ease + right, 1), right) for right in truths])
    return questions


def test_the_interval_is_that_of_a_bootstrap_over_questions() -> None:
    questions = drawn(random.Random(0), 60)
    estimate = counted(questions).estimate(questions)
    rng = random.Random(1)
    again = [counted(rng.choices(questions, k=60)).auc() for _ in range(400)]
    low, high = estimate.interval()
    assert estimate.value == counted(questions).auc()
    assert abs(estimate.influence.sum()) < 1e-9
    assert (high - low) / (2 * 1.96) == pytest.approx(np.std(again), rel=0.15)


def test_the_difference_of_two_rewards_is_paired() -> None:
    """A reward minus itself is exactly 0, although each alone is uncertain."""
    questions = drawn(random.Random(0), 20)
    one = counted(questions).estimate(questions)
    assert (one - one).interval() == (0.0, 0.0)


def test_the_calibration_error_is_the_mean_distance_over_bins() -> None:
    """Two values: four items at 0 with a quarter right, six at 1 that are right."""
    binary = counted([[(0.0, False)] * 3 + [(0.0, True)] + [(5.0, True)] * 6])
    assert binary.calibration_error() == pytest.approx(0.4 * 0.25)
    halves = counted([[(number / 99, number % 2 == 0) for number in range(100)]])
    assert halves.calibration_error() == pytest.approx(0.25, abs=0.01)  # mean of |value - 0.5|
    assert counted([[(0.3, True), (0.3, False)]]).calibration_error() is None


def scored(trajectory: Trajectory, **rewards: object) -> tuple[Trajectory, dict[str, object]]:
    return trajectory, rewards


def rows_of(*pairs: tuple[Trajectory, dict[str, object]]) -> dict[tuple[str, str, str], AuditRow]:
    rows = audit(audited(pairs, TRUTH))
    return {(row.level, row.truth, row.reward): row for row in rows if row.hops is None}


LUCKY = solved(step(OTHER[0]), GOLD[1])
WRONG = replace(solved(GOLD[0], step(OTHER[0])), answer="nobody")


def test_a_reward_of_the_process_tells_a_lucky_answer_where_the_outcome_cannot() -> None:
    gold = scored(solved(*GOLD), total=1.0, steps=[{"mine": 0.9}] * 2)
    lucky = scored(LUCKY, total=0.2, steps=[{"mine": 0.1}, {"mine": 0.9}])
    wrong = scored(WRONG, total=0.4, steps=[{"mine": 0.9}, {"mine": 0.1}])
    rows = rows_of(gold, lucky, wrong)
    supported = rows["trajectory", "supported", "total"]
    assert (supported.n, supported.right) == (3, 1)
    assert supported.auc.value == supported.within.value == 1.0
    assert rows["trajectory", "supported", "em"].auc.value == 0.75
    assert supported.gain.value == 0.25
    assert rows["trajectory", "supported", "em"].gain is None
    of_steps = rows["step", "right", "step.mine"]
    assert (of_steps.n, of_steps.right, of_steps.auc.value) == (6, 4, 1.0)
    assert rows["step", "right", "total"].n == 6  # a trajectory's value counts for its steps
    assert rows["step", "right", "em"].auc.value == 0.625  # 3 + 4 / 2 of 8 comparisons


def test_verdicts_on_over_and_under_search_are_apart_and_unknown_ones_left_out() -> None:
    over = [{"kind": "over", "verdict": "no"}, {"kind": "under", "verdict": "no"}]
    mixed = [{"kind": "over", "verdict": "yes"}, {"kind": "under", "verdict": "unknown"}]
    gold = scored(solved(*GOLD), steps=over, good="yes")  # a text of one's own is no verdict
    rows = rows_of(gold, scored(LUCKY, steps=mixed, good="no"))
    assert {reward for *_, reward in rows} == {"em", "f1", "step.over", "step.under"}
    assert (rows["step", "right", "step.over"].n, rows["step", "right", "step.under"].n) == (2, 1)
    assert rows["step", "right", "step.over"].auc.value == 1.0
    assert rows["step", "right", "step.over"].calibration_error == 0.0


def test_groups_of_hops_add_up_and_titles_name_the_rewards() -> None:
    rows = audit(audited([scored(solved(*GOLD), total=1.0), scored(LUCKY, total=0.0)], TRUTH))
    assert {row.hops for row in rows} == {None, len(CHAIN)}
    first, *_ = tables(rows, {"total": "Reward [all]"})
    assert first.header[-1] == "2 hops"
    assert [line[0] for line in first.rows] == ["Outcome: EM", "Outcome: F1", "Reward [all]"]
    assert first.rows[0][1:4] == ["–", "–", "–"]  # every answer is right, so EM cannot rank
