"""The sentences on why a pair was formed name the condition that held, and fit what `select` did."""

from __future__ import annotations

from typing import Literal

import pytest

from pipeline.config.policy import Pairs
from pipeline.pairs.reasons import reasons
from pipeline.pairs.select import PAPER, Candidate, select


def multi(name: str, sample: int, format: float, outcome: float, process: float) -> Candidate:
    return Candidate(name, sample, "multi", format, outcome, process, output=name)


SAMPLES = [
    multi("best", 0, 1, 1, 0.95),
    multi("good", 1, 1, 0.85, 0.9),  # good enough by the relaxed bounds only
    multi("broken-off", 2, 0, 0, 0),
    multi("middling", 3, 1, 0.75, 0.1),
    multi("wrong", 4, 1, 0.1, 0.8),
]


@pytest.mark.parametrize(
    ("terms", "sides", "chosen", "rejected"),
    [
        ("all", ("best", "broken-off"), "pairs.multi_outcome)", "fails the format."),
        ("all", ("good", "wrong"), "pairs.multi_outcome_relaxed)", "pairs.easy_outcome)"),
        ("outcome", ("best", "broken-off"), "pairs.multi_outcome)", "which does not count, and"),
    ],
)
def test_the_condition_that_held_is_named_by_its_setting(
    terms: Literal["all", "outcome"], sides: tuple[str, str], chosen: str, rejected: str
) -> None:
    thresholds = Pairs(terms=terms)
    pairs, _ = select(SAMPLES, thresholds)
    [pair] = [pair for pair in pairs if (pair.chosen.id, pair.rejected.id) == sides]
    found = reasons(pair.kind, pair.chosen, pair.rejected, thresholds)
    assert chosen in found.chosen
    assert rejected in found.rejected


def test_a_pair_by_margin_names_both_rewards() -> None:
    best, worse = (Candidate(n, 0, "multi", 1, 1, 1, reward=r) for n, r in (("a", 1.2), ("b", 0.9)))
    found = reasons("margin", best, worse, PAPER)
    assert "its reward 0.9 is lower than 1.2 by at least 0.1 (pairs.margin)" in found.rejected
