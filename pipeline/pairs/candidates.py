"""The values that select a trajectory for pairs, and the record of a pair.

There are two kinds of reward. The first has separate outcome and process terms (TeaRAG, arXiv
2511.05385, eq. 5, 6 and 13). In the second the terms add up to a single number that is compared by
a margin (HiPRAG, arXiv 2510.07794, eq. 1; ProGraph-R1 eq. 15).
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from contextlib import suppress
from typing import Any, TypedDict

from pipeline.core.errors import InputError
from pipeline.core.records import ChatMessage, Message, Pair, PairKind
from pipeline.core.text import one_line
from pipeline.rollout.conversations.messages import prompt_and_turns, recorded


class CandidateTerms(TypedDict, total=False):
    """Fields of a `pipeline.pairs.select.Candidate` that follow from reward terms."""

    format: float
    outcome: float
    process: float
    reward: float | None
    judged: bool
    evidenced: bool


def by_total(terms: Mapping[str, Any]) -> CandidateTerms | None:
    """``total`` as the reward, with ``format`` and ``answer``; None where one is missing.

    ``process`` is n_corr / n, the share of correct search decisions, and 1 without a judged
    decision. Raises InputError for a term that is not a finite number.
    """
    if not {"format", "answer", "total"} <= terms.keys():
        return None
    counted = terms.get("n") is not None
    judged_steps = number(terms, "n") if counted else None
    correct = number(terms, "n_corr") if counted and "n_corr" in terms else judged_steps
    return {
        "format": number(terms, "format"),
        "outcome": number(terms, "answer"),
        "process": correct / judged_steps if judged_steps and correct is not None else 1.0,
        "reward": number(terms, "total"),
        "judged": judged_steps != 0,
    }


def number(terms: Mapping[str, Any], name: str) -> float:
    """A reward term. Raises InputError if it is not a finite number, or too large for a float."""
    value = terms[name]
    with suppress(OverflowError):
        if isinstance(value, int | float) and type(value) is not bool and math.isfinite(value):
            return float(value)
    raise InputError(f"rewards.{name} is {one_line(repr(value), 60)}; expected a finite number")


def pair_of(
    chosen: Any,
    rejected: Any,
    kind: PairKind,
    prompt: list[Message],
    round: int,
    tools: str | None = None,
) -> Pair:
    """The pair of two trajectories, or of views with the same fields; ``output`` may be None.

    ``tools`` are of conversations, whose prompt is their own.
    """
    if chosen.messages:
        opening, _ = prompt_and_turns(chosen.messages)
        prompt = [Message(message["role"], message["content"]) for message in opening]
    return Pair(
        question_id=chosen.question_id,
        prompt=prompt,
        chosen=_side(chosen),
        rejected=_side(rejected),
        chosen_id=chosen.trajectory_id,
        rejected_id=rejected.trajectory_id,
        kind=kind,
        chosen_rewards=chosen.rewards or {},
        rejected_rewards=rejected.rewards or {},
        policy=chosen.policy,
        round=round,
        prompt_ids=chosen.prompt_ids,
        chosen_ids=chosen.token_ids,
        rejected_ids=rejected.token_ids,
        chosen_spans=chosen.token_spans,
        rejected_spans=rejected.token_spans,
        tools=tools if chosen.messages else None,
    )


def _side(trajectory: Any) -> list[ChatMessage]:
    if trajectory.messages:
        return recorded(prompt_and_turns(trajectory.messages)[1])
    return [] if trajectory.output is None else [ChatMessage("assistant", trajectory.output)]
