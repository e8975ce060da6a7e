"""Examples of 1 to 4 hops in the requested sizes, with nothing shared by train and test."""

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipeline.core.records import Step
from pipeline.training.sft_data.split import Example, SupervisedTrajectory, split, supply


def trajectory(name: str, subqueries: list[str | None]) -> SupervisedTrajectory:
    steps = tuple(None if text is None else Step(subquery=text) for text in subqueries)
    return SupervisedTrajectory(name, f"question {name}", "a", steps, tuple("a" for _ in steps))


def by_hops(examples: list[Example]) -> dict[int, int]:
    return dict(Counter(len(example.steps) for example in examples))


TRAJECTORIES = [
    trajectory(f"{hops}-{n}", [f"{hops} {n} {i}" for i in range(hops)])
    for hops in (2, 3)
    for n in range(20)
]


def test_sizes_are_met_when_enough_trajectories_exist() -> None:
    train, test = split(TRAJECTORIES, {1: 30, 2: 10, 3: 5}, {1: 4, 2: 3, 3: 2}, seed=0)
    assert by_hops(train) == {1: 30, 2: 10, 3: 5}
    assert by_hops(test) == {1: 4, 2: 3, 3: 2}


@pytest.mark.parametrize(
    ("available", "size", "test_size", "train", "test"),
    [
        (1, 1, 1, 1, 0),
        (3, 2, 2, 2, 1),  # 1.5 each
        (2, 1, 100, 1, 1),  # in proportion training would have none
        (4, 2, 2, 2, 2),
        (4, 0, 3, 0, 3),
    ],
)
def test_the_test_never_takes_the_last_trajectory_from_training(
    available: int, size: int, test_size: int, train: int, test: int
) -> None:
    parts = split(TRAJECTORIES[:available], {2: size}, {2: test_size}, seed=0)
    assert tuple(map(len, parts)) == (train, test)


def test_supply_counts_complete_trajectories_and_distinct_steps() -> None:
    trajectories = [
        trajectory("a", ["one", "two"]),
        trajectory("b", ["two", "three"]),
        trajectory("c", ["four", None]),
        trajectory("d", ["five"]),
    ]
    assert supply(trajectories) == {1: 5, 2: 2}


def test_a_trajectory_with_a_missing_step_still_gives_its_other_steps() -> None:
    incomplete = [trajectory("x", ["one", None]), trajectory("y", [None, "two"])]
    train, test = split(incomplete, {1: 9, 2: 9}, {}, seed=0)
    assert sorted(example.id for example in train) == ["x#1", "y#2"]
    assert {example.question for example in train} == {"one", "two"}
    assert test == []


@given(
    st.lists(
        st.lists(st.sampled_from("abcd"), min_size=1, max_size=4, unique=True),
        min_size=6,
        max_size=12,
    ),
    st.fixed_dictionaries(dict.fromkeys(range(1, 5), st.integers(0, 6))),
    st.fixed_dictionaries(dict.fromkeys(range(1, 5), st.integers(0, 3))),
    st.integers(0, 3),
)
def test_train_and_test_share_no_question_and_no_single_step(
    hops: list[list[str]], sizes: dict[int, int], test_sizes: dict[int, int], seed: int
) -> None:
    trajectories = [trajectory(str(n), list(subqueries)) for n, subqueries in enumerate(hops)]
    train, test = split(trajectories, sizes, test_sizes, seed)
    assert not {e.question_id for e in train} & {e.question_id for e in test}
    trained = {step.subquery for example in train for step in example.steps}
    tested = {step.subquery for example in test for step in example.steps}
    singles_trained = {example.question for example in train if len(example.steps) == 1}
    singles_tested = {example.question for example in test if len(example.steps) == 1}
    assert not singles_trained & tested
    assert not singles_tested & trained
    assert all(count <= sizes.get(hops, 0) for hops, count in by_hops(train).items())
    assert all(count <= test_sizes.get(hops, 0) for hops, count in by_hops(test).items())
