"""ProGraph-R1's step rewards of a trajectory (3.3, eq. 11 to 15).

    R_t = r_outcome + lambda_1 r_sp(t) + lambda_2 (r_con(t) + r_ans(t))

r_outcome is the format, 1 or 0, plus the token F1 of the answer, or Graph-R1's gated reward
(`gated`). Progress r_sp is the difference of
the value estimates of two neighboring states (`progress`); r_con and r_ans are the structure terms
(`structure`). Input: trajectories with the terms of their turns. Output:
every term of every step, their means over the trajectory, and ``total``, the mean of R_t, by which
trajectories are paired.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Sequence
from typing import Annotated, TypedDict

from pipeline.config.policy import ProGraphReward
from pipeline.core.answer_metrics import f1, outcome
from pipeline.core.records import Trajectory
from pipeline.methods.prograph.structure import Structure
from pipeline.rollout.turns import turns_of

DEFAULT = ProGraphReward()
_PROGRESS = "Step progress (eq. 11)"
_CONNECTIVITY, _ANSWER_REACH = "Connectivity (eq. 12–14)", "Answer reach (eq. 12–14)"
_TOTAL = "R_t (eq. 15)"


class StepRewards(TypedDict):
    """r_sp (None if not measured), r_con, r_ans and R_t of one step."""

    progress: Annotated[float | None, _PROGRESS]
    connectivity: Annotated[float, _CONNECTIVITY]
    answer_reach: Annotated[float, _ANSWER_REACH]
    total: Annotated[float, _TOTAL]


class ProGraphRewards(TypedDict):
    """The terms of one trajectory: format, F1, means over its steps, and the steps themselves."""

    format: Annotated[float, "Format"]
    answer: Annotated[float, "Answer F1"]
    progress: Annotated[float | None, _PROGRESS]
    connectivity: Annotated[float | None, _CONNECTIVITY]
    answer_reach: Annotated[float | None, _ANSWER_REACH]
    total: Annotated[float | None, _TOTAL]
    steps: list[StepRewards]


def step_rewards(
    trajectory: Trajectory,
    structure: Sequence[Structure],
    values: Sequence[float] | None,
    weights: ProGraphReward = DEFAULT,
) -> ProGraphRewards:
    """The rewards of one trajectory.

    ``values`` are the value estimates before every turn and after the last. None means that
    progress was not measured: it is then null in the record and left out of the totals.
    """
    format_ok, answer = float(trajectory.format_ok), outcome(trajectory, f1)
    if weights.outcome == "gated":
        format_ok, answer = gated(trajectory, answer)
    progress: list[float | None] = [None] * len(structure)
    if values is not None:
        progress = [after - before for before, after in itertools.pairwise(values)]
    steps: list[StepRewards] = [
        {
            "progress": step_progress,
            "connectivity": terms.connectivity,
            "answer_reach": terms.answer_reach,
            "total": 0.0,
        }
        for step_progress, terms in zip(progress, structure, strict=True)
    ]
    return combined(format_ok, answer, steps, weights)


def gated(trajectory: Trajectory, answer: float) -> tuple[float, float]:
    """Graph-R1's format and answer terms, as its public code computes them; 1 less is the outcome.

    The format is .5 for each well-formed turn, at most 1: a thought with a query, or in the last
    turn a thought with the answer. The answer counts where it is 1: after one query, and after two
    however the answer is written.
    """
    *turns, last = [turn.text.strip() for turn in turns_of(trajectory)] or [""]
    whole = sum(_turn("query", turn) for turn in turns) + _turn("answer", last)
    return min(0.5 * whole, 1.0), answer if whole >= 2 else 0.0


def _turn(tag: str, text: str) -> bool:
    """Whether a turn is one thought and one query or answer, and nothing else."""
    inside = r"(?:(?!</?(?:think|query|answer)>).)*"
    return bool(re.fullmatch(rf"<think>{inside}</think>\s*<{tag}>{inside}</{tag}>", text, re.S))


def combined(
    format_ok: float, answer: float, steps: Sequence[StepRewards], weights: ProGraphReward
) -> ProGraphRewards:
    """The rewards of a trajectory whose steps have all terms but the totals."""
    base = format_ok + answer - (weights.outcome == "gated")
    steps = [
        {
            **step,
            "total": base
            + weights.progress * (step["progress"] or 0.0)
            + weights.structure * (step["connectivity"] + step["answer_reach"]),
        }
        for step in steps
    ]
    return {
        "format": format_ok,
        "answer": answer,
        "progress": _mean([step["progress"] for step in steps]),
        "connectivity": _mean([step["connectivity"] for step in steps]),
        "answer_reach": _mean([step["answer_reach"] for step in steps]),
        "total": _mean([step["total"] for step in steps]) if steps else base,
        "steps": steps,
    }


def _mean(values: Sequence[float | None]) -> float | None:
    """The mean of the measured values; 0 without values, None without measured values."""
    measured = [value for value in values if value is not None]
    if values and not measured:
        return None
    return sum(measured) / len(measured) if measured else 0.0
