"""The steps of a trajectory as the pages show them, and the evidence that they match.

Input: a trajectory with its reward terms. Output: for each step its query, conclusion, retrieved
items with rank, and the golden evidence that its texts match best. TeaRAG's reward keeps the
largest similarity of each piece of evidence over all steps (arXiv 2511.05385, eq. 9 to 11), but not
the step. The page shows the step whose text shares most words with the evidence (`lexical`), and
says how the step was chosen.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from operator import attrgetter
from typing import Any, NamedTuple

from pipeline.core.records import ContextItem, Step, Trajectory
from pipeline.core.similarity import lexical
from pipeline.methods.tearag.evidence_match import item_text

_OFFSET = re.compile(r" at offset (\d+)$")
_AROUND = 120  # characters of text on each side of a format error
KINDS = ("subquery", "context", "summary")
_PARTS: dict[str, Callable[[StepView], Any]] = {
    "the reasoning": attrgetter("reasoning"),
    "the query": attrgetter("query"),
    "the key entities": attrgetter("entities"),
    "the retrieved items": lambda step: [item.text for item in step.items],
    "the conclusion": attrgetter("conclusion"),
}


class StepView(NamedTuple):
    """One step, in any grammar; ``query`` is None for a step without search."""

    query: str | None
    entities: Sequence[str]
    reasoning: str
    conclusion: str
    items: Sequence[ContextItem]
    terms: Mapping[str, float]


class EvidenceMatch(NamedTuple):
    """One piece of golden evidence; ``matches``: recorded value and step, by kind of text."""

    text: str
    matches: Mapping[str, tuple[float, int | None]]


def step_views(trajectory: Trajectory) -> list[StepView]:
    """The steps, with the reward terms of each if the method has such terms."""
    steps, terms = trajectory.steps, (trajectory.rewards or {}).get("steps")
    if not isinstance(terms, list) or len(terms) != len(steps):
        terms = [None] * len(steps)
    return [
        StepView(
            step.asked or None, step.entities, step.reasoning or step.think,
            step.summary or step.conclusion, step.context,
            scalar_terms(own if isinstance(own, dict) else None),
        )
        for step, own in zip(steps, terms, strict=True)
    ]  # fmt: skip


def first_difference(sides: Sequence[Mapping[str, Any]]) -> str:
    """The first step at which two trajectories differ, and the kind of difference; else empty.

    Each side has its name, ``side``, and its ``steps``.
    """
    left, right = (side["steps"] for side in sides)
    for number, (one, other) in enumerate(zip(left, right, strict=False), start=1):
        for name, part in _PARTS.items():
            if part(one) != part(other):
                return f"step {number}, in {name}"
    if len(left) != len(right):
        longer = sides[0 if len(left) > len(right) else 1]["side"]
        return (
            f"step {min(len(left), len(right)) + 1}, which is complete on one side only: {longer}"
        )
    return ""


def format_error(trajectory: Trajectory) -> tuple[str, str, str]:
    """The parser's reason, and the text before and after its place if it names a place."""
    reason = trajectory.format_error or "no cause recorded"
    found = _OFFSET.search(reason)
    if found is None:
        return reason, "", ""
    at, text = int(found[1]), trajectory.output
    before, after = text[max(0, at - _AROUND) : at], text[at : at + _AROUND]
    return reason, "…" * (at > _AROUND) + before, after + "…" * (at + _AROUND < len(text))


def evidence_matches(trajectory: Trajectory) -> list[EvidenceMatch]:
    """The golden evidence with its recorded matches; empty for rewards that have none."""
    memory = (trajectory.rewards or {}).get("memory")
    if not isinstance(memory, dict):
        return []
    result = []
    for place, text in enumerate(trajectory.evidence):
        matches = {}
        for kind in KINDS:
            values = memory.get(kind)
            if isinstance(values, list) and place < len(values):
                matches[kind] = (float(values[place]), _nearest(text, trajectory.steps, kind))
        result.append(EvidenceMatch(text, matches))
    return result


def _nearest(evidence: str, steps: Sequence[Step], kind: str) -> int | None:
    """The step, from 1, whose text of this kind shares most words with the evidence."""
    values = [0.0]  # of no step
    for step in steps:
        of_items = [item_text(item) for item in step.context]
        texts = of_items if kind == "context" else [getattr(step, kind)]
        values.append(max(map(float, lexical([(evidence, text) for text in texts])), default=0.0))
    return values.index(max(values)) or None


def scalar_terms(rewards: Mapping[str, Any] | None) -> dict[str, float]:
    """The reward terms that are single numbers."""
    return {
        name: float(value)
        for name, value in (rewards or {}).items()
        if isinstance(value, int | float) and not isinstance(value, bool)
    }
