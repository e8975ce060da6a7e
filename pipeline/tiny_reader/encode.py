"""Chats and paths as token ids with loss weights.

Purpose: the same ids that the sampler and the trainers will make: prompt by the chat template,
every segment of a path tokenised by itself. Input: messages, or messages and segments. Output:
`Sample`s. What the model writes has weight one, the end of its turn included; the rest has the
weight `context` (above zero only in the phase in which the language itself is learned).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from pipeline.tiny_reader.packing import Sample

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerFast

START, END = "<|im_start|>", "<|im_end|>"
Piece = tuple[str, bool]


def chat_pieces(chat: Sequence[tuple[str, str]]) -> list[Piece]:
    """The chat template's text in pieces, True for what the assistant writes."""
    pieces: list[Piece] = []
    for role, content in chat:
        if role == "assistant":
            pieces += [(f"{START}assistant\n", False), (content + END, True), ("\n", False)]
        else:
            pieces.append((f"{START}{role}\n{content}{END}\n", False))
    return pieces


def path_pieces(chat: Sequence[tuple[str, str]], segments: Sequence[Piece]) -> list[Piece]:
    """A prompt, the opened assistant turn and its segments, the last one closed."""
    pieces = [*chat_pieces(chat), (f"{START}assistant\n", False), *segments]
    return [*pieces, (END, True)]


def samples(
    tokenizer: PreTrainedTokenizerFast,
    texts: Sequence[tuple[list[Piece], str]],
    *,
    context: float = 0.0,
) -> list[Sample]:
    """Samples of many texts, tokenised in one batch.

    Args:
        tokenizer: of the tiny reader.
        texts: pieces and kind of every sample.
        context: loss weight of the tokens that the model does not write.
    """
    flat = [piece for pieces, _ in texts for piece, _ in pieces]
    encoded = iter(tokenizer.backend_tokenizer.encode_batch_fast(flat, add_special_tokens=False))
    made: list[Sample] = []
    for pieces, kind in texts:
        ids: list[int] = []
        weights: list[float] = []
        for _, model in pieces:
            part = next(encoded).ids
            ids += part
            weights += [1.0 if model else context] * len(part)
        made.append(Sample(ids, weights, kind))
    return made
