"""Judged steps and their verdicts (HiPRAG, arXiv 2510.07794, section 3.2).

A step with a search is judged for *over-search* (the policy knows the result without searching), a
step without one for *under-search* (its conclusion is wrong, so it should have searched). A verdict
is "yes", "no" or "unknown". It is "unknown" after an outage or an unreadable answer; unknown steps
are excluded from the numerator and the denominator of every rate.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

from pipeline.core.records import Trajectory

Kind = Literal["over", "under"]
Ruling = Literal["yes", "no", "unknown"]
KINDS: tuple[Kind, ...] = ("over", "under")


@dataclass(frozen=True, slots=True)
class JudgedStep:
    """One step to judge. Retrieved text is not part of it: neither judgment uses it."""

    id: str  # trajectory id
    step: int  # index of the step, from 0
    query: str | None  # search query; None for a step without search
    reasoning: str
    conclusion: str

    @property
    def kind(self) -> Kind:
        """The error that the step is judged for: over-search with a query, else under-search."""
        return "under" if self.query is None else "over"


@dataclass(frozen=True, slots=True)
class Verdict:
    """The verdict on one step."""

    id: str  # trajectory id
    step: int  # index of the step, from 0
    kind: Kind
    verdict: Ruling  # "yes": the step is an over-search or under-search
    model: str  # name of the judge
    key: str  # content key of the judge's call; equal cases of a judge have equal keys


def steps_of(trajectories: Iterable[Trajectory]) -> list[JudgedStep]:
    """The steps to judge of every trajectory, in order.

    In the grammars of TeaRAG and Search-R1 every step searches, and its summary is its conclusion.
    Steps in ProGraph-R1's grammar have no conclusion and cannot be judged. Trajectories that
    stopped with "retrieval_error" are left out, because they do not show the policy's decisions. In
    a malformed trajectory the parsed steps are judged.
    """
    return [
        _judged_step(trajectory, number)
        for trajectory in trajectories
        if trajectory.stop != "retrieval_error"
        for number in range(len(trajectory.steps))
    ]


def _judged_step(trajectory: Trajectory, number: int) -> JudgedStep:
    step, name = trajectory.steps[number], trajectory.trajectory_id
    if step.subquery:
        return JudgedStep(name, number, step.subquery, "", step.summary)
    return JudgedStep(name, number, step.search, step.reasoning, step.conclusion)
