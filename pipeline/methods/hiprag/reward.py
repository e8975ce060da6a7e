"""HiPRAG's hierarchical reward of a trajectory (arXiv 2510.07794, 3.3, eq. 1).

    R(T) = A (1 - lambda_f) + lambda_f F + lambda_p A F N_corr / N

A is the cover exact match of the final answer, F the format verdict, N the number of steps of both
kinds, and N_corr the number of correct steps: search steps without over-search plus other steps
without under-search. With A = F = 1 the reward is 1 + lambda_p N_corr / N. Input: trajectories and
the verdicts on their steps. Output: every term of every trajectory.

Departures. The released code counts only search steps in N, so that a trajectory without any search
earns the whole bonus; this module counts both kinds, as the paper does. A step with an unknown
verdict is left out of N and N_corr; the code counts it as correct (an option). The bonus is 0 when
N is 0.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Annotated, TypedDict

from pipeline.config.policy import HiPragReward
from pipeline.core.answer_metrics import CoverMatch, cover_exact_match, outcome
from pipeline.core.errors import InputError
from pipeline.core.records import Step, Trajectory
from pipeline.core.verdicts import Kind, Ruling

PAPER = HiPragReward()


class StepVerdict(TypedDict):
    """The kind of error that a step is judged for, and the verdict."""

    kind: Kind
    verdict: Ruling


class HiPragRewards(TypedDict):
    """The terms of one trajectory: A, F, the verdicts, N, N_corr and R(T)."""

    answer: Annotated[float, "Answer covered (A)"]
    format: Annotated[float, "Format (F)"]
    steps: list[StepVerdict]
    n: Annotated[int, "Judged steps (N)"]
    n_corr: Annotated[int, "Needed decisions (N_corr)"]
    total: Annotated[float, "Reward (HiPRAG eq. 1)"]


def score(
    trajectories: Sequence[Trajectory],
    verdicts: Sequence[Sequence[Ruling | None]],
    weights: HiPragReward = PAPER,
    cem: CoverMatch = "words",
) -> list[HiPragRewards]:
    """Every term of every trajectory, in order, in the layout of ``steep score``.

    Reads ``answers``, ``answer``, ``format_ok`` and ``steps``. ``verdicts`` holds one entry per
    step, None for a step that was not judged. Raises InputError naming the step when such a step
    would count, that is, when the answer is correct and the format followed; elsewhere None is
    recorded as unknown. ``cem``: see `cover_exact_match`.
    """
    return [
        _terms(trajectory, rulings, weights, cem)
        for trajectory, rulings in zip(trajectories, verdicts, strict=True)
    ]


def _kind(step: Step) -> Kind:
    """The error that a step is judged for: over-search if it searches, else under-search."""
    return "under" if step.search is None else "over"


def _terms(
    trajectory: Trajectory,
    rulings: Sequence[Ruling | None],
    weights: HiPragReward,
    cem: CoverMatch,
) -> HiPragRewards:
    answer = outcome(trajectory, partial(cover_exact_match, match=cem))
    format_ok = float(trajectory.format_ok)
    if len(rulings) != len(trajectory.steps):
        raise InputError(
            f"{len(trajectory.steps)} steps and {len(rulings)} verdicts; judge the trajectory again"
        )
    missing = [
        ruling is None and weights.penalise in ("both", _kind(step))
        for step, ruling in zip(trajectory.steps, rulings, strict=True)
    ]
    if answer * format_ok * weights.process > 0 and any(missing):
        raise InputError(
            f"steps.{missing.index(True)}.verdict: missing; judge the trajectory first"
        )
    steps: list[StepVerdict] = [
        {"kind": _kind(step), "verdict": ruling or "unknown"}
        for step, ruling in zip(trajectory.steps, rulings, strict=True)
    ]
    return combined(answer, format_ok, steps, weights)


def combined(
    answer: float, format_ok: float, steps: Sequence[StepVerdict], weights: HiPragReward
) -> HiPragRewards:
    """The terms, where N, N_corr and R(T) follow from the others."""
    right = ("no", "unknown") if weights.unknown == "correct" else ("no",)
    correct = [
        step["verdict"] in right if weights.penalise in ("both", step["kind"]) else True
        for step in steps
        if weights.penalise not in ("both", step["kind"]) or step["verdict"] in (*right, "yes")
    ]
    n, n_corr = len(correct), sum(correct)
    bonus = weights.process * answer * format_ok * n_corr / n if n else 0.0
    return {
        "answer": answer,
        "format": format_ok,
        "steps": list(steps),
        "n": n,
        "n_corr": n_corr,
        "total": answer * (1 - weights.format) + weights.format * format_ok + bonus,
    }
