"""Check of the loss mask of a trajectory: its trained and its masked text, in pieces.

Input: token ids with spans and a tokenizer. Output: the decoded text of every span, in which an
inverted or shifted mask is visible, and a comparison of the decoded pieces with the text by
characters (TeaRAG, arXiv 2511.05385, eq. 4: the loss covers every token of the model and no
retrieved token).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from pipeline.core.errors import InputError
from pipeline.core.records import Span
from pipeline.grammars.spans import cover_error, extend, pieces
from pipeline.grammars.tokenizer import Tokenizer
from pipeline.grammars.tokens import decode, observation_ids
from pipeline.grammars.tokens import mismatch as token_mismatch


@dataclass(frozen=True)
class Mask:
    """Decoded spans in order; ``trained`` may end in the end-of-turn token, which is sampled."""

    trained: list[str]
    masked: list[str]


def decode_mask(token_ids: list[int], token_spans: Sequence[Span], tokenizer: Tokenizer) -> Mask:
    """Decode the tokens of the model and of the observations, span by span.

    Raises InputError when the spans do not cover the ids exactly.
    """
    problem = cover_error(token_spans, len(token_ids))
    if problem is not None:
        raise InputError(f"token_spans: {problem}")
    return Mask(
        trained=[decode(tokenizer, part) for part in pieces(token_ids, token_spans, "model")],
        masked=[decode(tokenizer, part) for part in pieces(token_ids, token_spans, "observation")],
    )


def tokenize_spans(
    text: str, spans: Sequence[Span], tokenizer: Tokenizer
) -> tuple[list[int], list[Span]]:
    """Token ids and token spans of a text without recorded ids, tokenized span by span."""
    ids: list[int] = []
    token_spans: list[Span] = []
    for start, end, writer in spans:
        part = observation_ids(tokenizer, text[start:end])
        ids += part
        token_spans = extend(token_spans, len(part), writer)
    return ids, token_spans


def observation_mismatch(mask: Mask, output: str, spans: Sequence[Span]) -> str | None:
    """The first difference between masked text and observation text; None when they agree.

    ``spans`` are the character spans of ``output``.
    """
    observations = pieces(output, spans, "observation")
    if len(observations) != len(mask.masked):
        return f"{len(mask.masked)} masked pieces, but {len(observations)} observation spans"
    for number, (masked, observation) in enumerate(
        zip(mask.masked, observations, strict=True), start=1
    ):
        if masked != observation:
            return (
                f"masked piece {number} is {masked[:60]!r}, but the observation text is "
                f"{observation[:60]!r}"
            )
    return None


def mismatch(
    token_ids: list[int],
    token_spans: Sequence[Span],
    tokenizer: Tokenizer,
    output: str,
    spans: Sequence[Span],
) -> str | None:
    """The first difference between tokens and text; None when they agree.

    It compares masked and observation text (`observation_mismatch`), then the whole text and the
    writers of its pieces. This also finds trained tokens that are not the policy's text.
    """
    spans, token_spans = _joined(spans), _joined(token_spans)
    decoded = decode_mask(token_ids, token_spans, tokenizer)
    problem = observation_mismatch(decoded, output, spans)
    return problem or token_mismatch(tokenizer, output, spans, token_ids, token_spans)


def _joined(spans: Sequence[Span]) -> list[Span]:
    """The same pieces without empty spans; neighbours of one writer are one span."""
    joined: list[Span] = []
    for start, end, writer in spans:
        joined = extend(joined, end - start, writer)
    return joined
