"""The steps of a trajectory as the pages show them, and the evidence that they match.

Input: a trajectory with its reward terms. Output: for each step its query, conclusion, retrieved
items with rank, and the golden evidence that its texts match best. TeaRAG's reward keeps the
largest similarity of each piece of evidence over all steps (arXiv 2511.05385, eq. 9 to 11), but not
the step. The page shows the step whose text shares most words with the evidence (`lexical`), and
says how the step was chosen.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from pipeline.core.records import ContextItem, Step, Trajectory
from pipeline.core.similarity import lexical
from pipeline.methods.tearag.evidence_match import item_text

_OFFSET = re.compile(r" at offset (\d+)$")
_AROUND = 120  # characters of text on each side of a format error
KINDS = ("subquery", "context", "summary")


@dataclass(frozen=True)
class StepView:
    """One step, in any grammar; ``query`` is None for a step without search."""

    number: int
    query: str | None
    entities: Sequence[str]
    reasoning: str
    conclusion: str
    items: Sequence[ContextItem]
    terms: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class EvidenceMatch:
    """One piece of golden evidence; ``matches``: recorded value and step, by kind of text."""

    text: str
    matches: Mapping[str, tuple[float, int | None]]


def step_views(trajectory: Trajectory) -> list[StepView]:
    """The steps from 1, with the reward terms of each if the method has such terms."""
    terms = (trajectory.rewards or {}).get("steps")
    of_step: list[dict[str, Any]] = [{} for _ in trajectory.steps]
    if isinstance(terms, list) and len(terms) == len(of_step):
        of_step = [dict(each) if isinstance(each, dict) else {} for each in terms]
    return [
        StepView(
            number,
            step.asked or None,
            step.entities,
            step.reasoning or step.think,
            step.summary or step.conclusion,
            step.context,
            of_step[number - 1],
        )
        for number, step in enumerate(trajectory.steps, start=1)
    ]


def first_difference(sides: Sequence[Mapping[str, Any]]) -> str:
    """The first step at which two trajectories differ, and the kind of difference; else empty.

    Each side has its name, ``side``, and its ``steps``.
    """
    left, right = (side["steps"] for side in sides)
    for one, other in zip(left, right, strict=False):
        parts = {
            "the reasoning": (one.reasoning, other.reasoning),
            "the query": (one.query, other.query),
            "the key entities": (one.entities, other.entities),
            "the retrieved items": ([i.text for i in one.items], [i.text for i in other.items]),
            "the conclusion": (one.conclusion, other.conclusion),
        }
        if found := [name for name, (a, b) in parts.items() if a != b]:
            return f"step {one.number}, in {found[0]}"
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
