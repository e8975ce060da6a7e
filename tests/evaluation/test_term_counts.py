"""Counts of a reward term: AUC against exact match."""

from __future__ import annotations

import tracemalloc

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipeline.evaluation.term_counts import TermCounts


def counted(right: list[float], wrong: list[float]) -> TermCounts:
    counts = TermCounts()
    counts.add_question([(value, True) for value in right] + [(value, False) for value in wrong])
    return counts


@given(
    st.lists(st.integers(-5, 5), min_size=1, max_size=20),
    st.lists(st.integers(-5, 5), min_size=1, max_size=20),
)
def test_auc_is_the_share_of_comparisons_that_right_answers_win(
    right: list[int], wrong: list[int]
) -> None:
    won = [(a > b) + (a == b) / 2 for a in right for b in wrong]
    found = counted([value / 10 for value in right], [value / 10 for value in wrong])
    assert found.auc() == pytest.approx(sum(won) / len(won))
    assert found.within.auc().value == pytest.approx(sum(won) / len(won))


def test_ten_thousand_answers_to_one_question_take_no_memory_for_each_comparison() -> None:
    """``sampling.samples`` may be 10,000: 25 million comparisons, of which the right win all but ties."""
    tracemalloc.start()
    found = counted([0.5, 1.0] * 2500, [0.0, 0.5] * 2500).within
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert found.comparisons == 25_000_000
    assert found.auc().value == 1 - 0.25 / 2
    assert peak < 10e6


def test_without_a_wrong_answer_there_is_no_auc() -> None:
    assert counted([0.3], []).auc() is None


def test_answers_to_one_question_can_compare_as_answers_to_all_do_not() -> None:
    """Right beats wrong in both questions, but the easy question has the larger values."""
    counts = TermCounts()
    counts.add_question([(0.9, True), (0.8, False)])
    counts.add_question([(0.2, True), (0.1, False), (0.1, False)])
    assert counts.auc() == pytest.approx(5 / 6)
    assert counts.within.auc().value == 1.0
    assert (counts.within.questions, counts.within.comparisons) == (2, 3)


def test_comparisons_within_questions_are_pooled_and_ties_count_half() -> None:
    """Three of four comparisons won, none of one, and a tie: 3.5 of 6. The fourth has no wrong answer.

    The residuals w - n · 3.5 / 6 are 2/3, -7/12 and -1/12 with squares that sum to 114/144.
    """
    counts = TermCounts()
    counts.add_question([(0.5, True), (0.3, True), (0.2, False), (0.4, False)])
    counts.add_question([(0.1, True), (0.9, False)])
    counts.add_question([(0.7, True), (0.7, False)])
    counts.add_question([(0.7, True)])
    assert counts.within.auc().value == pytest.approx(3.5 / 6)
    assert (counts.within.questions, counts.within.comparisons) == (3, 6)
    half = 1.96 * (114 / 144 * 3 / 2) ** 0.5 / 6
    assert counts.within.auc().interval() == pytest.approx((3.5 / 6 - half, 3.5 / 6 + half))
