"""The sentences on why a pair was formed name the condition that held, and fit what `select` did."""

from __future__ import annotations

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


def of(chosen: str, rejected: str, thresholds: Pairs = PAPER) -> tuple[str, str, str]:
    pairs, _ = select(SAMPLES, thresholds)
    pair = next(p for p in pairs if (p.chosen.id, p.rejected.id) == (chosen, rejected))
    return reasons(pair.kind, pair.chosen, pair.rejected, thresholds)


def test_the_condition_that_held_is_named_with_its_values_and_setting() -> None:
    chosen, rejected, partner = of("best", "broken-off")
    assert chosen == (
        "Multi-hop question: outcome 1 is at least 1 (pairs.multi_outcome), and process 0.95 is at "
        "least 0.7 (pairs.multi_process)."
    )
    assert rejected == "It fails the format."
    assert partner.endswith("each from the lowest total on.")


def test_the_relaxed_condition_is_named() -> None:
    chosen, rejected, _ = of("good", "wrong")
    assert "outcome 0.85 is at least 0.8 (pairs.multi_outcome_relaxed)" in chosen
    assert rejected == "It is well-formed, and outcome 0.1 is at most 0.3 (pairs.easy_outcome)."


@pytest.mark.parametrize(
    ("kind", "what"),
    [("margin", "right and well-formed"), ("easy", "wrong answer"), ("format", "fails the format")],
)
def test_a_pair_by_margin_names_both_rewards(kind: str, what: str) -> None:
    best, worse = (Candidate(n, 0, "multi", 1, 1, 1, reward=r) for n, r in (("a", 1.2), ("b", 0.9)))
    found = reasons(kind, best, worse, PAPER)  # type: ignore[arg-type]
    assert "highest reward of such samples, 1.2" in found.chosen
    assert what in found.rejected
    assert "its reward 0.9 is lower than 1.2 by at least 0.1 (pairs.margin)" in found.rejected
    assert "1 (pairs.decisions)" in found.partner
