"""Counts of a reward term: means, distribution, and AUC against exact match."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipeline.evaluation.term_counts import TermCounts


def counted(right: list[float], wrong: list[float]) -> TermCounts:
    counts = TermCounts()
    for values, is_right in ((right, True), (wrong, False)):
        for value in values:
            counts.add(value, is_right)
    return counts


def test_auc_is_the_share_of_pairs_in_which_the_right_answer_has_more() -> None:
    """Right 0.5 and 0.9, wrong 0.1, 0.5 and 0.7: 1 + 1/2 + 0 and 3 of six pairs, so 4.5 / 6."""
    assert counted([0.5, 0.9], [0.1, 0.5, 0.7]).auc() == pytest.approx(0.75)


@pytest.mark.parametrize(
    ("right", "wrong", "auc"),
    [([1.0], [0.0], 1.0), ([0.0], [1.0], 0.0), ([0.3], [0.3], 0.5), ([0.3], [], None)],
)
def test_auc_of_separated_equal_and_missing_answers(
    right: list[float], wrong: list[float], auc: float | None
) -> None:
    assert counted(right, wrong).auc() == auc


@given(
    st.lists(st.integers(-5, 5), min_size=1, max_size=20),
    st.lists(st.integers(-5, 5), min_size=1, max_size=20),
)
def test_auc_equals_that_of_scikit_learn(right: list[int], wrong: list[int]) -> None:
    from sklearn.metrics import roc_auc_score

    values = [value / 10 for value in right + wrong]
    expected = roc_auc_score([1] * len(right) + [0] * len(wrong), values)
    found = counted([value / 10 for value in right], [value / 10 for value in wrong]).auc()
    assert found == pytest.approx(expected)


def test_means_are_of_the_values_themselves_and_none_without_values() -> None:
    counts = counted([0.123456, 0.2], [0.4])
    assert counts.mean(True) == pytest.approx(0.161728)
    assert counts.mean() == pytest.approx(0.241152)
    assert counts.mean(False) == 0.4
    assert TermCounts().mean() is None


def test_the_distribution_has_each_value_once_in_order() -> None:
    values, numbers = counted([0.5, 0.25], [0.5]).distribution()
    assert values.tolist() == [0.25, 0.5]
    assert numbers.tolist() == [1.0, 2.0]


def test_memory_does_not_grow_with_the_number_of_trajectories() -> None:
    counts = TermCounts()
    for number in range(200_000):
        counts.add((number % 1000) / 1000, number % 3 == 0)
    assert counts.total == 200_000
    assert len(counts.distribution()[0]) == 1000
