"""Chats and paths as token ids with loss weights.

Purpose: the same ids that the sampler and the trainers will make: prompt by the chat template,
every segment of a path tokenised by itself. Input: messages, or messages and segments. Output:
`Sample`s. What the model writes has weight one, the end of its turn included; the rest has the
weight `context` (above zero only in the phase in which the language itself is learned).
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

from pipeline.tiny_reader.packing import Sample

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerFast

START, END = "<|im_start|>", "<|im_end|>"


class Piece(NamedTuple):
    """Text of one writer; `stress` holds (start, end, weight) of characters to be weighed."""

    text: str
    model: bool
    stress: tuple[tuple[int, int, float], ...] = ()


def chat_pieces(chat: Sequence[tuple[str, str]], weight: float = 1.0) -> list[Piece]:
    """The chat template's text in pieces; `weight` is that of the assistant's words."""
    pieces: list[Piece] = []
    for role, content in chat:
        if role == "assistant":
            pieces.append(Piece(f"{START}assistant\n", False))
            stress = ((0, len(content), weight),) if weight != 1.0 else ()
            pieces += [Piece(content + END, True, stress), Piece("\n", False)]
        else:
            pieces.append(Piece(f"{START}{role}\n{content}{END}\n", False))
    return pieces


def path_pieces(chat: Sequence[tuple[str, str]], segments: Sequence[Piece]) -> list[Piece]:
    """A prompt, the opened assistant turn and its segments, the last one closed."""
    pieces = [*chat_pieces(chat), Piece(f"{START}assistant\n", False), *segments]
    return [*pieces, Piece(END, True)]


def samples(
    tokenizer: PreTrainedTokenizerFast,
    texts: Sequence[tuple[list[Piece], str]],
    *,
    context: float = 0.0,
    stressed: bool = False,
) -> list[Sample]:
    """Samples of many texts, tokenised in one batch.

    Args:
        tokenizer: of the tiny reader.
        texts: pieces and kind of every sample.
        context: loss weight of the tokens that the model does not write.
        stressed: whether the pieces' own weights count.
    """
    flat = [piece.text for pieces, _ in texts for piece in pieces]
    encoded = iter(tokenizer.backend_tokenizer.encode_batch(flat, add_special_tokens=False))
    made: list[Sample] = []
    for pieces, kind in texts:
        ids: list[int] = []
        weights: list[float] = []
        for piece in pieces:
            part = next(encoded)
            own = [1.0 if piece.model else context] * len(part.ids)
            if stressed and piece.stress:
                ends = [end for _, end in part.offsets]
                for start, end, weight in piece.stress:
                    low, high = bisect_right(ends, start), bisect_left(ends, end) + 1
                    own[low:high] = [weight] * (min(high, len(own)) - low)
            ids += part.ids
            weights += own
        made.append(Sample(ids, weights, kind))
    return made
