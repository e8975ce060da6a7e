"""The reason for zero pairs names the condition that binds, with numbers and a remedy.

`tests/stages/test_pair.py` has the reason where all trajectories are malformed.
"""

from __future__ import annotations

from typing import Any

import pytest

from pipeline.config.policy import Pairs
from pipeline.pairs.select import select
from pipeline.pairs.shortage import shortage
from tests.pairs.test_select import candidate

GOOD: dict[str, Any] = {"well_formed": 1.0, "outcome": 1.0, "process": 0.1}


@pytest.mark.parametrize(
    ("values", "right", "reason"),
    [
        (
            {},
            2,
            "none is good enough to be chosen: 2 answers to multi-hop questions have a process of at most 0.1, and "
            "pairs.multi_process and multi_process_relaxed ask for at least 0.7; lower them, correct the evidence, or "
            "set pairs.terms to outcome-format",
        ),
        (
            {"evidenced": False},
            2,
            "at least 0.7, and these questions have no evidence to measure it; leave out their hop, add evidence, "
            "or set pairs.terms to outcome-format",
        ),
        (
            {"hop": "single", "outcome": 0.25},
            2,
            "2 single-hop answers have an outcome of at most 0.25, and pairs.single_outcome is 1; leave hop out of "
            "the questions, or set rewards.tearag.single_outcome to f1",
        ),
        ({}, 0, "3 trajectories, 0 right answers; start from a policy that answers some questions"),
        (
            {"well_formed": 0.0},
            2,
            "2 right answers, of which none follows the format; train the cold start longer",
        ),
        (
            {"hop": "unknown", "evidenced": False},
            3,
            "3 right answers; no other answer to the same questions is worse",
        ),
        (
            {"reward": 1.0},
            0,
            "3 right answers; no other answer to the same questions is worse by pairs.margin",
        ),
        (
            {"reward": 1.0, "well_formed": 0.0},
            0,
            "3 right answers, of which none follows the format",
        ),
        (
            {"outcome": 0.8, "process": 0.9},
            0,
            "3 right answers; no other answer to the same questions is worse",
        ),
        (
            {"reward": 1.0, "outcome": 0.5},
            0,
            "3 trajectories, 0 right answers; start from a policy that answers some questions",
        ),
        ({"broken": True}, 2, "no trajectory was sampled without a failure of the retrieval"),
    ],
)
def test_the_binding_condition_is_named(values: dict[str, Any], right: int, reason: str) -> None:
    candidates = [candidate(f"c{number}", **GOOD | values) for number in range(3)]
    assert select(candidates, Pairs())[0] == []
    found = shortage([[(one, one.sample < right) for one in candidates]], Pairs())
    assert reason in found


def test_a_single_number_is_not_told_to_leave_out_the_format() -> None:
    """``pairs.terms`` leaves terms out of TeaRAG's sum; HiPRAG's reward stays as it is."""
    broken = candidate("c0", well_formed=0.0, outcome=1.0, process=1.0, reward=0.8)
    for terms in ("all", "outcome"):
        found = shortage([[(broken, True)]], Pairs(terms=terms))
        assert found.endswith("of which none follows the format; train the cold start longer")
