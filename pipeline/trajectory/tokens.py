"""Text to ids and back, in the three ways a path needs, so that ids and text never disagree.

Prompts go through the model's chat template; environment text is tokenised by itself, without
special tokens, and spliced between sampled ids; sampled ids are only ever decoded. A path's text is
the concatenation of its decoded parts, which makes character and token spans agree by construction.
`mismatch` decodes them again and compares (a mask is only as good as its spans).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from pipeline.errors import InputError
from pipeline.records import Message, Span
from pipeline.trajectory.spans import cover_error, extend


def prompt_ids(tokenizer: Any, messages: Sequence[Message]) -> list[int]:
    """Ids of the chat template over ``messages``, generation prompt appended.

    The template writes BOS where the model wants one; tokenising its text with special tokens
    would double it (trl#4481). Raises InputError when the tokenizer has no chat template.
    """
    if tokenizer.chat_template is None:
        raise InputError(
            f"the tokenizer of {tokenizer.name_or_path} has no chat template; "
            "name one with model.chat_template, or take an instruct model"
        )
    text = tokenizer.apply_chat_template(
        [{"role": message.role, "content": message.content} for message in messages],
        tokenize=False,
        add_generation_prompt=True,
    )
    return list(tokenizer(text, add_special_tokens=False)["input_ids"])


def environment_ids(tokenizer: Any, text: str) -> list[int]:
    """Ids of text that the environment inserts; a special token in it stays ordinary text."""
    return list(tokenizer(text, add_special_tokens=False, split_special_tokens=True)["input_ids"])


def decode(tokenizer: Any, token_ids: Sequence[int]) -> str:
    """The text of ids, special tokens dropped."""
    text: str = tokenizer.decode(
        list(token_ids), skip_special_tokens=True, clean_up_tokenization_spaces=False
    )
    return text


def mismatch(
    tokenizer: Any,
    output: str,
    spans: Sequence[Span],
    token_ids: Sequence[int],
    token_spans: Sequence[Span],
) -> str | None:
    """Why the text, its spans, the ids and their spans do not say the same, or None.

    Decodes every token span: the texts must concatenate to ``output``, and their writers must be
    those of the character spans.
    """
    problem = cover_error(token_spans, len(token_ids))
    if problem is not None:
        return f"token_spans: {problem}"
    found: list[Span] = []
    text = ""
    for start, end, writer in token_spans:
        part = decode(tokenizer, token_ids[start:end])
        text += part
        found = extend(found, len(part), writer)
    if text != output:
        at = next((i for i, (a, b) in enumerate(zip(text, output, strict=False)) if a != b), None)
        at = min(len(text), len(output)) if at is None else at
        return f"ids decode to {text[at : at + 20]!r} at offset {at}, text has {output[at : at + 20]!r}"
    if found != [tuple(span) for span in spans]:
        return f"spans are {list(spans)}, the ids say {found}"
    return None
