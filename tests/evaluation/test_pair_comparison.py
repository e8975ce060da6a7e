"""Kinds of pairs by round, and shares of chosen trajectories in common, against counts made by hand."""

from __future__ import annotations

from collections import Counter

from pipeline.evaluation.run_comparison import RoundPairs, pair_rows, shared_rows


def pairs(chosen: str, samples: str | None = "0", **kinds: int) -> RoundPairs:
    return RoundPairs(Counter(kinds), frozenset(chosen), samples)


def test_a_kind_that_one_seed_lacks_counts_as_none_of_its_pairs() -> None:
    runs = [{1: pairs("ab", easy=3, hard=1)}, {1: pairs("c", easy=5)}]
    rows = {row["kind"]: row for row in pair_rows("a", runs)}
    assert (rows["all"]["mean"], rows["all"]["values"]) == (4.5, [4, 5])
    assert (rows["hard"]["mean"], rows["hard"]["spread"]) == (0.5, 0.5**0.5)


def test_rounds_that_not_all_seeds_have_are_left_out() -> None:
    runs = [{1: pairs("a", easy=1), 2: pairs("b", easy=1)}, {1: pairs("c", easy=1)}]
    assert {row["round"] for row in pair_rows("a", runs)} == {1}


def test_chosen_trajectories_are_compared_between_runs_with_the_same_samples() -> None:
    first = [{1: pairs("abcd", "0"), 2: pairs("e", "a-1")}, {1: pairs("xy", "1")}]
    other = [{1: pairs("x", "1")}, {1: pairs("abz", "0"), 2: pairs("e", "b-1")}]
    [row] = shared_rows(("first", first), ("other", other))
    assert row == {
        "before": "first", "after": "other", "round": 1, "mean": 0.5, "values": [0.5, 0.5]
    }  # fmt: skip


def test_runs_of_one_group_with_the_same_samples_are_all_compared() -> None:
    """The first run shares both of its trajectories with one of them, and none with the other."""
    other = [{1: pairs("ab")}, {1: pairs("cd")}]
    [row] = shared_rows(("first", [{1: pairs("ab")}, {1: pairs("cd")}]), ("other", other))
    assert row["values"] == [0.5, 0.5]


def test_without_the_samples_of_a_run_nothing_is_said_to_be_shared() -> None:
    unknown = [{1: pairs("ab", None)}]
    assert not list(shared_rows(("first", unknown), ("other", unknown)))
