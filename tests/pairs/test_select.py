"""Eq. 14 of TeaRAG on scenarios small enough to be walked by hand."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipeline.config.policy import Pairs
from pipeline.pairs.select import BINS, Candidate, select


def candidate(
    name: str, well_formed: float, outcome: float, process: float, **values: Any
) -> Candidate:
    """A multi-hop candidate whose sample index is the number at the end of its name."""
    defaults: dict[str, Any] = {"hop": "multi", "sample": int(name[-1]), "output": name}
    numbers = {"format": well_formed, "outcome": outcome, "process": process}
    return Candidate(id=name, **(defaults | numbers | values))


def single(name: str, well_formed: float, outcome: float) -> Candidate:
    return candidate(name, well_formed, outcome, 0.0, hop="single")


def named(
    *candidates: Candidate, **thresholds: Any
) -> tuple[list[tuple[str, str, str]], dict[str, str]]:
    pairs, bins = select(candidates, Pairs(**thresholds))
    return [(pair.chosen.id, pair.rejected.id, pair.kind) for pair in pairs], dict(bins)


def test_without_hops_and_evidence_outcome_and_format_select_pairs() -> None:
    """The same answers as of a multi-hop question give nothing, because its process counts."""
    values = {"evidenced": False}
    answers = [("good0", 1.0, 1.0), ("half1", 1.0, 0.5), ("bad2", 1.0, 0.1), ("bad3", 0.0, 1.0)]
    unknown = [candidate(*one, 0.0, hop="unknown", **values) for one in answers]
    pairs, bins = named(*unknown)
    assert pairs == [("good0", "bad3", "format")]
    assert bins == {
        "good0": "chosen",
        "bad3": "rejected-format",
        "half1": "not-reached",
        "bad2": "not-reached",
    }
    assert named(*unknown[:2])[0] == [("good0", "half1", "hard")]
    assert named(*(replace(one, hop="multi") for one in unknown))[0] == []
    assert named(*(replace(one, evidenced=True) for one in unknown))[0] == []


def test_the_best_chosen_trajectory_gets_the_worst_partner_and_the_walk_continues_after_it() -> (
    None
):
    """Ascending: bad0 (0.2), bad1 (1.2), bad2 (1.3), good3 (2.8), good4 (2.9)."""
    pairs, bins = named(
        candidate("bad0", 0, 0.0, 0.2),
        candidate("bad1", 1, 0.0, 0.2),
        candidate("bad2", 1, 0.1, 0.2),
        candidate("good3", 1, 1.0, 0.8),
        candidate("good4", 1, 1.0, 0.9),
    )
    assert pairs == [("good4", "bad0", "format"), ("good3", "bad1", "easy")]
    assert bins == {
        "good4": "chosen",
        "good3": "chosen",
        "bad0": "rejected-format",
        "bad1": "rejected-easy",
        "bad2": "not-reached",
    }


def test_a_trajectory_that_was_passed_over_is_not_considered_again() -> None:
    """Ascending: half0 (2.3), hard1 (2.35), good3 (2.65), good2 (2.7).

    good2 (process 0.7) passes over half0, whose process 0.8 is better than its own, and takes
    hard1. good3's process 0.85 would have allowed half0, but the walk is already behind it.
    """
    pairs, bins = named(
        candidate("half0", 1, 0.5, 0.8),
        candidate("hard1", 1, 0.7, 0.65),
        candidate("good2", 1, 1.0, 0.7),
        candidate("good3", 1, 0.8, 0.85),
    )
    assert pairs == [("good2", "hard1", "hard")]
    assert bins == {
        "half0": "passed-over",
        "hard1": "rejected-hard",
        "good2": "chosen",
        "good3": "chosen-unpaired",
    }


@pytest.mark.parametrize(
    ("well_formed", "outcome", "process", "is_chosen"),
    [
        (1, 1.0, 0.7, True),
        (1, 1.0, 0.1 * 1 + 0.3 * 1 + 0.3 * 1, True),  # 0.7 up to rounding
        (1, 1.0, 0.69, False),
        (1, 0.99, 0.79, False),
        (1, 0.8, 0.8, True),
        (1, 0.8, 0.79, False),
        (1, 0.79, 1.5, False),
        (0, 1.0, 1.0, False),
    ],
)
def test_multi_hop_chosen_set(
    well_formed: float, outcome: float, process: float, is_chosen: bool
) -> None:
    _, bins = named(candidate("x0", well_formed, outcome, process), candidate("y1", 0, 0, 0))
    assert (bins["x0"] == "chosen") is is_chosen


@pytest.mark.parametrize(
    ("outcome", "process", "kind"),
    [
        (0.0, 2.0, "rejected-easy"),
        (0.3, 0.9, "rejected-easy"),
        (0.31, 0.8, "rejected-hard"),
        (0.7, 0.8, "rejected-hard"),
        (0.7, 0.81, "passed-over"),
        (0.71, 0.1, "passed-over"),
    ],
)
def test_rejected_kinds_for_a_chosen_trajectory_with_outcome_1_and_process_08(
    outcome: float, process: float, kind: str
) -> None:
    _, bins = named(candidate("good0", 1, 1.0, 0.8), candidate("x1", 1, outcome, process))
    assert bins["x1"] == kind


def test_single_hop_pairs_need_outcome_1_and_are_never_hard() -> None:
    """Outcome is F1 / k: 0.5 is right in two steps, 0.25 right in four."""
    pairs, bins = named(
        single("one0", 1, 1.0), single("two1", 1, 0.5), single("four2", 1, 0.25),
        single("one3", 1, 1.0), single("one4", 1, 1.0),
    )  # fmt: skip
    assert pairs == [("one0", "four2", "easy")]
    assert bins["two1"] == "passed-over"
    assert bins["one3"] == bins["one4"] == "chosen-unpaired"


TABLE_8 = (
    candidate("bad0", 1, 0.3, 2.0),
    candidate("half1", 1, 0.5, 2.0),
    candidate("loose2", 0, 1.0, 0.9),
    candidate("vague3", 1, 0.9, 0.1),
    candidate("good4", 1, 1.0, 0.7),
)


@pytest.mark.parametrize(
    ("counted", "expected"),
    [
        # Ascending: loose2 (1.9), vague3 (2.0), good4 (2.7), bad0 (3.3), half1 (3.5).
        ("all", [("good4", "loose2", "format")]),
        # Ascending: loose2 (1.0), bad0 (1.3), half1 (1.5), vague3 (1.9), good4 (2.0).
        ("outcome-format", [("good4", "loose2", "format"), ("vague3", "bad0", "easy")]),
        # Ascending: bad0 (0.3), half1 (0.5), vague3 (0.9), loose2 and good4 (1.0).
        ("outcome", [("loose2", "bad0", "easy"), ("good4", "half1", "hard")]),
    ],
)
def test_terms_that_do_not_count_are_in_no_sum_and_no_condition(
    counted: str, expected: list[tuple[str, str, str]]
) -> None:
    """Without the process .9 is enough to be chosen, and half1's better process no obstacle.

    Without the format, malformed loose2 is chosen for its right answer.
    """
    assert named(*TABLE_8, terms=counted)[0] == expected


SCORES = st.sampled_from([0.0, 0.25, 0.3, 0.5, 0.7, 0.8, 1.0])
CANDIDATES = st.lists(
    st.tuples(st.sampled_from([0.0, 1.0, 1.0]), SCORES, SCORES, st.integers(0, 9), st.booleans()),
    max_size=10,
)


@given(
    CANDIDATES,
    st.sampled_from(["single", "multi"]),
    st.sampled_from(["all", "outcome-format", "outcome"]),
)
def test_every_trajectory_is_in_one_bin_and_in_at_most_one_pair(
    rows: list[tuple[float, float, float, int, bool]], hop: str, counted: str
) -> None:
    candidates = [
        candidate(f"p{n}", *scores, hop=hop, output=str(text), broken=broken and text < 2)
        for n, (*scores, text, broken) in enumerate(rows)
    ]
    pairs, bins = select(candidates, Pairs(terms=counted))
    assert bins.keys() == {candidate.id for candidate in candidates}
    assert set(bins.values()) <= BINS.keys()
    used = [side.id for pair in pairs for side in (pair.chosen, pair.rejected)]
    assert len(used) == len(set(used))
    outputs = [side.output for pair in pairs for side in (pair.chosen, pair.rejected)]
    assert len(outputs) == len(set(outputs))
    assert select(candidates[::-1], Pairs(terms=counted)) == (pairs, bins)
    for pair in pairs:
        assert bins[pair.chosen.id] == "chosen"
        assert bins[pair.rejected.id] == f"rejected-{pair.kind}"
        assert not pair.rejected.broken
