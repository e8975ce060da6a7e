"""Step pairs: the better and the worse of two steps after a prefix (ProGraph-R1, eq. 15).

Input: the scored trajectories of one question, with step rewards. Output: pairs of trajectories
that end with the step; all tokens before the step are excluded from training. A step that occurs in
several trajectories counts once, with the mean of its rewards R_t. For every prefix, the best step
of a well-formed trajectory is paired with the worst step if their rewards differ by at least a
margin.

The first turns of all samples of a question follow the same prompt. Later turns of independent
samples share a prefix only where two have the same tokens and the same knowledge before the turn,
which is rare at a sampling temperature above 0. The continuations that measure progress also share
prefixes, but only their answers are stored, and the progress of their steps was not measured.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from pipeline.core.errors import InputError
from pipeline.core.input_files import parse_json
from pipeline.core.records import Span, Trajectory, Writer
from pipeline.rollout.conversations.messages import messages_before
from pipeline.rollout.turns import turns_of


@dataclass(frozen=True, slots=True)
class _Occurrence:
    """One occurrence of a step: turn ``number`` of a trajectory, and its reward terms."""

    trajectory: Trajectory
    number: int
    terms: dict[str, Any]


def step_pairs(
    trajectories: Sequence[Trajectory], margin: float
) -> list[tuple[Trajectory, Trajectory]]:
    """(chosen, rejected) of every prefix at which steps differ by ``margin``, in order.

    Trajectories whose retrieval failed have no rewards and are left out. Raises InputError for a
    trajectory without a reward of each of its turns.
    """
    steps_by_prefix: dict[tuple[int, ...], dict[tuple[int, ...], list[_Occurrence]]] = {}
    for trajectory in trajectories:
        turns = turns_of(trajectory) if trajectory.rewards is not None else []
        terms = _step_terms(trajectory, len(turns))
        for number, (turn, step_terms) in enumerate(zip(turns, terms, strict=True)):
            start, end = turn.tokens
            prefix = tuple(trajectory.token_ids[:start])
            step = tuple(trajectory.token_ids[start:end])
            occurrence = _Occurrence(trajectory, number, step_terms)
            steps_by_prefix.setdefault(prefix, {}).setdefault(step, []).append(occurrence)
    pairs = []
    for steps in steps_by_prefix.values():
        rewards = {step: _mean_reward(occurrences) for step, occurrences in steps.items()}
        well_formed = [
            step
            for step, occurrences in steps.items()
            if any(occurrence.trajectory.format_ok for occurrence in occurrences)
        ]
        if not well_formed:
            continue
        best = max(well_formed, key=rewards.__getitem__)
        worst = min(steps, key=rewards.__getitem__)
        if rewards[best] - rewards[worst] >= margin:
            chosen = next(
                occurrence for occurrence in steps[best] if occurrence.trajectory.format_ok
            )
            pairs.append((_up_to_turn(chosen), _up_to_turn(steps[worst][0])))
    return pairs


def _step_terms(trajectory: Trajectory, turns: int) -> list[dict[str, Any]]:
    rewards = trajectory.rewards or {}
    steps: list[dict[str, Any]] = rewards.get("steps", [])
    if len(steps) != turns or not all("total" in terms for terms in steps):
        raise InputError(
            f"trajectory {trajectory.trajectory_id} has no reward of each of its {turns} turns; "
            "score it with a method that rewards steps, or set pairs.step_margin to null"
        )
    return steps


def _mean_reward(occurrences: Sequence[_Occurrence]) -> float:
    return sum(float(each.terms["total"]) for each in occurrences) / len(occurrences)


def _up_to_turn(occurrence: _Occurrence) -> Trajectory:
    """The trajectory up to the end of the turn, with only that turn marked as the model's."""
    trajectory, number = occurrence.trajectory, occurrence.number
    spans, token_spans = (
        _ending(spans, number) for spans in (trajectory.spans, trajectory.token_spans)
    )
    return replace(
        trajectory,
        output=trajectory.output[: spans[-1][1] if spans else 0],
        messages=trajectory.messages and _messages(trajectory.messages, number),
        spans=spans,
        token_ids=trajectory.token_ids[: token_spans[-1][1]],
        token_spans=token_spans,
        rewards=occurrence.terms,
    )


def _messages(text: str, number: int) -> str:
    """The conversation up to turn ``number``, as JSON text."""
    messages = parse_json(text, "messages")
    return json.dumps(messages[: len(messages_before(messages, number)) + 1], ensure_ascii=False)


def _ending(spans: Sequence[Span], number: int) -> list[Span]:
    """The spans up to the model's span ``number`` (from 0); the model's earlier ones are untrained.

    They become observations, or frames of a conversation, whose turns end in control tokens.
    """
    model_spans = [index for index, (*_, writer) in enumerate(spans) if writer == "model"]
    last = model_spans[number] if number < len(model_spans) else len(spans) - 1
    earlier: Writer = "frame" if any(span[2] == "frame" for span in spans) else "observation"
    before: list[Span] = [
        (start, end, earlier if writer == "model" else writer)
        for start, end, writer in spans[:last]
    ]
    return [*before, *spans[last : last + 1]]
