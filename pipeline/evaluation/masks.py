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


def mismatch(
    token_ids: list[int],
    token_spans: Sequence[Span],
    tokenizer: Tokenizer,
    output: str,
    spans: Sequence[Span],
) -> str | None:
    """The first difference between tokens and text; None when they agree.

    It compares the whole text and the writers of its pieces (`grammars.tokens.mismatch`), so it
    finds masked tokens that are no observation and trained tokens that are not the policy's text.
    """
    return token_mismatch(tokenizer, output, _joined(spans), token_ids, _joined(token_spans))


def _joined(spans: Sequence[Span]) -> list[Span]:
    """The same pieces without empty spans; neighbours of one writer are one span."""
    joined: list[Span] = []
    for start, end, writer in spans:
        joined = extend(joined, end - start, writer)
    return joined
