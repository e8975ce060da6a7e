"""Checks of token ids and masks against the recorded text, before anything is trained.

Input: token ids with spans over them, and the text with its spans. Every function raises
TrainingError when they disagree: a mask that is inverted or shifted by one token would train on
retrieved text.
"""

from __future__ import annotations

import unicodedata
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from pipeline.core.errors import Place, TrainingError
from pipeline.core.records import ChatMessage, Span, Writer
from pipeline.core.spans import common_length, pieces
from pipeline.llm.tokenizer import Tokenizer
from pipeline.llm.tokens import control_ids, decode

_IDS = 2**31  # ids are stored in 32 bits


@contextmanager
def of_record(name: str) -> Iterator[None]:
    """Put the name of a record before the errors of a block."""
    try:
        with Place(name):
            yield
    except TrainingError as error:
        raise TrainingError(f"{name}: {error}") from None


def check_ids(ids: Sequence[int], vocabulary: int | None, remedy: str) -> None:
    """Raise TrainingError when there are no ids, or one is not in a vocabulary of this size.

    With None the size is unknown, and only ids that no vocabulary has are refused.
    """
    if not ids:
        raise TrainingError(f"no token ids; {remedy}")
    size = _IDS if vocabulary is None else vocabulary
    if min(ids) < 0 or max(ids) >= size:
        at, token = next((at, token) for at, token in enumerate(ids) if not 0 <= token < size)
        raise TrainingError(f"token {at} has the id {token}; expected 0 to {size - 1}; {remedy}")


def check_mask(
    tokenizer: Tokenizer,
    ids: Sequence[int],
    token_spans: Sequence[Span],
    text: str,
    spans: Sequence[Span],
) -> None:
    """Compare the decoded trained and masked tokens with the recorded text, piece by piece.

    ``ids`` [T] have ``token_spans`` over them and ``text`` has character ``spans``; a closing
    end-of-turn token must be left out of ``ids``. Raises TrainingError naming the first piece that
    differs.
    """
    writers: tuple[Writer, ...] = ("model", "observation")
    for writer in writers:
        decoded_pieces = [decode(tokenizer, ids) for ids in pieces(list(ids), token_spans, writer)]
        text_pieces = pieces(text, spans, writer)
        if len(decoded_pieces) != len(text_pieces):
            raise TrainingError(
                f"{len(decoded_pieces)} {writer} pieces in ids, {len(text_pieces)} in text"
            )
        for decoded, expected in zip(decoded_pieces, text_pieces, strict=True):
            remedy = "the tokenizer does not reproduce this text, or the mask is shifted"
            check_text(decoded, expected, f"{writer} tokens", remedy)


def check_turns(
    tokenizer: Tokenizer,
    ids: Sequence[int],
    token_spans: Sequence[Span],
    messages: Sequence[ChatMessage],
) -> None:
    """Compare the decoded trained tokens of a conversation with the assistant's messages.

    The last trained pieces are the last turns; a step pair trains one turn alone. Raises
    TrainingError when a piece lacks the text or the reasoning of its message.
    """
    decoded = [decode(tokenizer, part) for part in pieces(list(ids), token_spans, "model")]
    turns = [message for message in messages if message.role == "assistant"]
    if not decoded or len(decoded) > len(turns):
        raise TrainingError(f"{len(decoded)} trained pieces for {len(turns)} turns")
    for piece, message in zip(reversed(decoded), reversed(turns), strict=False):
        for text in (message.content.strip(), (message.reasoning_content or "").strip()):
            if unicodedata.normalize("NFC", text) not in unicodedata.normalize("NFC", piece):
                raise TrainingError(
                    f"the trained tokens {piece[:40]!r} lack the text {text[:40]!r} of "
                    "their turn; the mask is shifted, or the chat template is another"
                )


def check_control_tokens(
    tokenizer: Tokenizer, prompt: Sequence[int], completion: Sequence[int | None]
) -> None:
    """Raise TrainingError for a doubled BOS and for control tokens inside a completion.

    ``completion`` excludes the closing token; None marks a token that is exempt from the check.
    """
    bos, eos = tokenizer.bos_token_id, tokenizer.eos_token_id
    if eos is None:
        raise TrainingError("the tokenizer has no end-of-turn token; set eos_token in its files")
    if bos is not None and list(prompt[:2]) == [bos, bos]:
        raise TrainingError(f"the prompt starts with two {tokenizer.bos_token} tokens")
    control = control_ids(tokenizer)
    for at, token in enumerate(completion):
        if token is not None and token in control:
            raise TrainingError(
                f"control token {tokenizer.convert_ids_to_tokens(token)} at token {at} of "
                f"{len(completion)} of the completion; expected exactly one "
                f"{tokenizer.eos_token}, at its end"
            )


def checked_ids(ids: Sequence[int], spans: Sequence[Span], *, sampled: bool) -> list[int | None]:
    """The ids [T] for `check_control_tokens`, None where a control token is expected.

    A chat template writes control tokens into frames, and each turn before one ends in a control
    token. With ``sampled``, all tokens of the policy are exempt.
    """
    checked: list[int | None] = list(ids)
    for number, (start, end, writer) in enumerate(spans):
        if writer == "frame" or (writer == "model" and sampled):
            checked[start:end] = [None] * (min(end, len(ids)) - start)
        elif writer == "model" and spans[number + 1 :] and spans[number + 1][2] == "frame":
            checked[end - 1] = None
    return checked


def check_text(decoded: str, expected: str, name: str, remedy: str) -> None:
    """Raise TrainingError that says where the decoded ids ``name`` differ from their text."""
    if same_text(decoded, expected):
        return
    at = common_length(decoded, expected)
    raise TrainingError(
        f"{name} decode to ...{decoded[max(0, at - 10) : at + 25]!r} at character {at}; "
        f"the text has ...{expected[max(0, at - 10) : at + 25]!r}; {remedy}"
    )


def same_text(decoded: str, text: str) -> bool:
    """Whether two texts are equal up to NFC normalization and one leading space.

    Qwen's tokenizer normalizes to NFC; SentencePiece adds a space in front.
    """
    if decoded == text:
        return True
    a, b = unicodedata.normalize("NFC", decoded), unicodedata.normalize("NFC", text)
    return a.removeprefix(" ") == b.removeprefix(" ")
