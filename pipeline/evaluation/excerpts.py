"""Texts of trajectories and pairs, cut by writer, for the terminal and the browser."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal, NamedTuple

from pipeline.core.errors import InputError
from pipeline.core.record_io import as_json
from pipeline.core.records import ChatMessage, Pair, Span, Trajectory, Writer
from pipeline.core.spans import cover_error
from pipeline.rollout.conversations.messages import by_turns, prompt_and_turns, uniform


class Segment(NamedTuple):
    """A stretch of text and its writer; "unknown" for imported records without spans."""

    text: str
    writer: Writer | Literal["unknown"]


def text_of(trajectory: Trajectory) -> list[Segment]:
    """The text of a trajectory by writer; a conversation by turns, with roles and calls.

    Turns of the assistant before the sampled ones are frame: the search of single-round retrieval,
    or what an agent had said before a recorded trajectory begins. Raises InputError when spans do
    not cover the output exactly.
    """
    text, spans = trajectory.output, trajectory.spans
    if not trajectory.messages:
        if not spans:
            return [Segment(text, "unknown")] if text else []
        problem = cover_error(spans, len(text))
        if problem:
            raise InputError(f"{problem}: spans must cover the text exactly")
        return [Segment(text[start:end], writer) for start, end, writer in spans if end > start]
    pieces = by_turns(prompt_and_turns(trajectory.messages)[1])
    if spans:
        sampled = sum(writer == "model" for *_, writer in spans)
        turns = [place for place, (_, writer) in enumerate(pieces) if writer == "model"]
        for place in turns[: max(0, len(turns) - sampled)]:
            pieces[place] = (pieces[place][0], "frame")
    return [Segment(*piece) for piece in pieces]


def texts_of(side: PairSide) -> list[Segment]:
    """The messages of a side of a pair, whose writers are unknown."""
    if any(message.role == "tool" for message in side.messages):
        turns = uniform([as_json(message) for message in side.messages])
        return [Segment(text, "unknown") for text, _ in by_turns(turns)]
    return [Segment(message.content, "unknown") for message in side.messages]


class PairSide(NamedTuple):
    """One side of a pair: its tokens with their spans, its messages and its reward terms."""

    name: str
    id: str
    ids: Sequence[int]
    spans: Sequence[Span]
    messages: Sequence[ChatMessage]
    rewards: Mapping[str, Any]


def pair_sides(pair: Pair) -> tuple[PairSide, PairSide]:
    """The chosen and the rejected side."""
    return (
        PairSide("chosen", pair.chosen_id, pair.chosen_ids, pair.chosen_spans,
                 pair.chosen, pair.chosen_rewards),
        PairSide("rejected", pair.rejected_id, pair.rejected_ids, pair.rejected_spans,
                 pair.rejected, pair.rejected_rewards),
    )  # fmt: skip


def question_of(pair: Pair) -> str:
    """The question of a pair, which is the last message of the user."""
    return next((m.content for m in reversed(pair.prompt) if m.role == "user"), "")
