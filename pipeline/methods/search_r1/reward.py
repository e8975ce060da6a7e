"""Search-R1's outcome reward of a trajectory, with a format term (arXiv 2503.09516, 2505.15117).

    R(T) = A (1 - lambda_f) + lambda_f F

A is the exact match of the final answer (2503.09516, 3.4, "rule-based outcome reward") and F the
format verdict, 1 or 0. With a binary A these are the four cases of 2505.15117: 1 for a right answer
in the right format, 1 - lambda_f for a right answer in a wrong format, lambda_f for the format
alone, 0 otherwise. lambda_f = 0 is the reward of 2503.09516, which has no format term. Input:
trajectories. Output: every term of every trajectory.

Departure: A can be the token F1 instead of the exact match (``answer``), for questions whose gold
answers are long.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, TypedDict

from pipeline.config.policy import SearchR1Reward
from pipeline.core.answer_metrics import exact_match, f1, outcome
from pipeline.core.records import Trajectory

DEFAULT = SearchR1Reward()


class SearchR1Rewards(TypedDict):
    """The terms of one trajectory: A, F and R(T)."""

    answer: Annotated[float, "Answer (exact match or F1)"]
    format: Annotated[float, "Format"]
    total: Annotated[float, "Reward (Search-R1)"]


def score(
    trajectories: Sequence[Trajectory], weights: SearchR1Reward = DEFAULT
) -> list[SearchR1Rewards]:
    """Every term of every trajectory, in order; reads ``answers``, ``answer`` and ``format_ok``."""
    measure = exact_match if weights.answer == "em" else f1
    return [
        combined(outcome(one, measure), float(one.format_ok), weights.format)
        for one in trajectories
    ]


def combined(answer: float, format_ok: float, weight: float) -> SearchR1Rewards:
    """The terms with their total, where ``weight`` is lambda_f."""
    total = answer * (1 - weight) + weight * format_ok
    return {"answer": answer, "format": format_ok, "total": total}
