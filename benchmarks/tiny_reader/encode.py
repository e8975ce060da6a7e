"""Token ids and loss weights of chats and trajectories.

Purpose: the same ids that the sampler and the trainers produce. The prompt follows the chat
template, and every segment of a trajectory is tokenized separately. Input: messages, or messages
and segments. Output: `Sample`s. Model-written tokens, including the end of the turn, have weight 1.
All other tokens have `context_weight`, which is above zero only in the phase that learns the
language itself.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

from benchmarks.tiny_reader.packing import Sample

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerFast

START, END = "<|im_start|>", "<|im_end|>"


class Segment(NamedTuple):
    """Text of one writer.

    Attributes:
        text: the text.
        by_model: whether the model writes it; otherwise it is prompt or observation text.
        span_weights: (start, end, loss weight) of characters whose weight is not the default.
    """

    text: str
    by_model: bool
    span_weights: tuple[tuple[int, int, float], ...] = ()


LabeledText = tuple[list[Segment], str]  # the segments of a text and the kind of its task


def chat_segments(chat: Sequence[tuple[str, str]], weight: float = 1.0) -> list[Segment]:
    """The text of the chat template, in segments.

    Args:
        chat: (role, content) of every message.
        weight: loss weight of the assistant's messages.
    """
    segments: list[Segment] = []
    for role, content in chat:
        if role == "assistant":
            segments.append(Segment(f"{START}assistant\n", False))
            span_weights = ((0, len(content), weight),) if weight != 1.0 else ()
            segments += [Segment(content + END, True, span_weights), Segment("\n", False)]
        else:
            segments.append(Segment(f"{START}{role}\n{content}{END}\n", False))
    return segments


def trajectory_segments(
    chat: Sequence[tuple[str, str]], segments: Sequence[Segment]
) -> list[Segment]:
    """A prompt, the start of the assistant's turn, its segments, and the end of the turn."""
    opened = [*chat_segments(chat), Segment(f"{START}assistant\n", False), *segments]
    return [*opened, Segment(END, True)]


def encode_samples(
    tokenizer: PreTrainedTokenizerFast,
    texts: Sequence[LabeledText],
    *,
    context_weight: float = 0.0,
    use_span_weights: bool = False,
) -> list[Sample]:
    """Training samples of many texts, tokenized in one batch.

    Args:
        tokenizer: of the tiny reader.
        texts: segments and kind of every sample.
        context_weight: loss weight of the tokens that the model does not write.
        use_span_weights: whether the segments' span weights apply.
    """
    flat = [segment.text for segments, _ in texts for segment in segments]
    encodings = iter(tokenizer.backend_tokenizer.encode_batch(flat, add_special_tokens=False))
    samples: list[Sample] = []
    for segments, kind in texts:
        ids: list[int] = []
        weights: list[float] = []
        for segment in segments:
            encoding = next(encodings)
            default = 1.0 if segment.by_model else context_weight
            segment_weights = [default] * len(encoding.ids)
            if use_span_weights and segment.span_weights:
                ends = [end for _, end in encoding.offsets]
                for start, end, weight in segment.span_weights:
                    low, high = bisect_right(ends, start), bisect_left(ends, end) + 1
                    count = min(high, len(segment_weights)) - low
                    segment_weights[low:high] = [weight] * count
            ids += encoding.ids
            weights += segment_weights
        samples.append(Sample(ids, weights, kind))
    return samples
