"""Spans: which part of a trajectory the model wrote, in characters or in tokens.

Spans are ``[start, end, writer]``: half-open, ordered, without gaps, covering the text or the ids
exactly. ``writer`` is "model", "observation" or, between the turns of a conversation, "frame". Loss
masks and token counts are computed from them.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TypeVar

from pipeline.core.records import Span, Writer

T = TypeVar("T", str, list[int], list[float | None])


def covering(length: int, observations: Sequence[tuple[int, int]]) -> list[Span]:
    """Spans over ``length`` positions: ``observations`` in order, and model spans between."""
    spans: list[Span] = []
    position = 0
    for start, end in observations:
        spans = extend(spans, start - position, "model")
        spans = extend(spans, end - start, "observation")
        position = end
    return extend(spans, length - position, "model")


def extend(spans: Sequence[Span], length: int, writer: Writer) -> list[Span]:
    """``spans`` with ``length`` more positions; a last span with the same writer is lengthened."""
    if length <= 0:
        return list(spans)
    start = spans[-1][1] if spans else 0
    if spans and spans[-1][2] == writer:
        return [*spans[:-1], (spans[-1][0], start + length, writer)]
    return [*spans, (start, start + length, writer)]


def joined(*parts: Sequence[Span]) -> list[Span]:
    """The spans of texts, or of lists of ids, that follow each other."""
    spans: list[Span] = []
    for start, end, writer in itertools.chain.from_iterable(parts):
        spans = extend(spans, end - start, writer)
    return spans


@dataclass
class SpannedText:
    """A text whose pieces are written one after the other, and its spans."""

    text: str = ""
    spans: list[Span] = field(default_factory=list)

    def add(self, piece: str, writer: Writer = "model") -> None:
        """Append a piece."""
        self.text += piece
        self.spans = extend(self.spans, len(piece), writer)


def cover_error(spans: Sequence[Span], length: int) -> str | None:
    """Why ``spans`` do not cover ``length`` positions exactly, or None when they do."""
    position = 0
    for start, end, _ in spans:
        if start != position or end < start:
            return f"span [{start}, {end}) should start at {position} and not end before it"
        position = end
    return None if position == length else f"spans end at {position}, expected {length}"


def written_mask(spans: Sequence[Span]) -> list[int]:
    """1 on every position that the model wrote, 0 on the others."""
    return [int(writer == "model") for start, end, writer in spans for _ in range(start, end)]


def common_length(one: Sequence[object], other: Sequence[object]) -> int:
    """The length of the longest common start of two texts or two lists."""
    pairs = enumerate(zip(one, other, strict=False))
    return next((n for n, (a, b) in pairs if a != b), min(len(one), len(other)))


def pieces(sequence: T, spans: Sequence[Span], writer: Writer) -> list[T]:
    """The parts of a text, or of a list of ids, with the writer ``writer``, in order."""
    return [sequence[start:end] for start, end, span_writer in spans if span_writer == writer]
