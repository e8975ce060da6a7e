"""Convert between text and token ids, so that a trajectory's ids and text always agree.

Prompts go through the model's chat template. Observation text is tokenized separately, without
special tokens, and its ids are spliced between the sampled ids, which are only ever decoded. The
text of a trajectory is the concatenation of its decoded parts, so character spans and token spans
agree by construction. Control tokens that the policy samples are part of that text, except the
token that ends the sequence. No added token comes from a question or a document: in prompts they
are escaped, in observations they are tokenized as ordinary text. `mismatch` decodes the ids again
and compares them, because a loss mask is only as good as its spans. `decode_mask` gives the text
of every span, in which an inverted or shifted mask is visible (TeaRAG, arXiv 2511.05385, eq. 4: the
loss covers every token of the model and no retrieved token).
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from functools import lru_cache
from itertools import pairwise
from typing import Any

from pipeline.core.errors import InputError, model_problem
from pipeline.core.records import Message, Span
from pipeline.core.sanitize import escape_tokens, token_patterns
from pipeline.core.spans import common_length, cover_error, extend, pieces
from pipeline.llm.tokenizer import Tokenizer, is_markup

_DATE = datetime(2024, 7, 26)  # for templates that write the date; a prompt must not change daily
DATE = _DATE.strftime("%d %b %Y")


def control_ids(tokenizer: Tokenizer) -> frozenset[int]:
    """Ids of control tokens: begin, end, padding and every token flagged as special.

    The token for unknown text is not included, unless it also has one of those roles.
    """
    added = tokenizer.added_tokens_decoder.items()
    flagged = (token_id for token_id, token in added if token.special)
    special = {*tokenizer.all_special_ids, *flagged}
    roles = (tokenizer.bos_token_id, tokenizer.eos_token_id, tokenizer.pad_token_id)
    named = {token_id for token_id in roles if token_id is not None}
    return frozenset((special - {tokenizer.unk_token_id}) | named)


def control_tokens(tokenizer: Tokenizer) -> tuple[str, ...]:
    """The texts of `control_ids`: as the vocabulary spells them and as they decode."""
    decoded = [decode(tokenizer, [token_id]) for token_id in sorted(control_ids(tokenizer))]
    visible = (text for text in decoded if text.strip())
    return tuple(dict.fromkeys((*_vocabulary_forms(tokenizer), *visible)))


def _vocabulary_forms(tokenizer: Tokenizer) -> tuple[str, ...]:
    return tuple(tokenizer.convert_ids_to_tokens(sorted(control_ids(tokenizer))))


def escaped_in_prompts(tokenizer: Tokenizer) -> tuple[str, ...]:
    """The texts that no question or document may bring into a prompt: control tokens and markup."""
    return (*_vocabulary_forms(tokenizer), *markup(tokenizer).values())


def rendered(
    tokenizer: Tokenizer,
    conversation: list[dict[str, Any]],
    generation_prompt: bool,
    **arguments: Any,
) -> str:
    """The chat template applied to a conversation; ``arguments`` are passed to the template.

    A template that writes the date gets a fixed one. Raises InputError when the tokenizer has no
    chat template, or one that fails.
    """
    if tokenizer.chat_template is None:
        raise InputError(
            f"the tokenizer of {tokenizer.name_or_path} has no chat template; "
            "set model.chat_template, or use an instruct model"
        )
    try:
        return tokenizer.apply_chat_template(
            conversation,
            tokenize=False,
            add_generation_prompt=generation_prompt,
            date_string=DATE,
            strftime_now=_DATE.strftime,
            **arguments,
        )
    except Exception as error:  # a template is a program, and may raise anything
        raise InputError(
            f"the chat template of {tokenizer.name_or_path} fails: {model_problem(error)}; correct "
            "it, or set model.chat_template to another"
        ) from error


def prompt_text(tokenizer: Tokenizer, messages: Sequence[Message]) -> str:
    """The chat template applied to ``messages``, with the generation prompt appended.

    Added tokens in a message are escaped, so that a question cannot switch the chat role. Raises
    InputError when the tokenizer has no chat template, or a template that fails or leaves out a
    message.
    """
    controls = escaped_in_prompts(tokenizer)
    contents = [escape_tokens(message.content, controls) for message in messages]
    conversation = [
        {"role": message.role, "content": content}
        for message, content in zip(messages, contents, strict=True)
    ]
    text = rendered(tokenizer, conversation, True)
    for message, content in zip(messages, contents, strict=True):
        if content.strip() not in text:  # templates strip contents
            raise InputError(
                f"the chat template of {tokenizer.name_or_path} leaves out the {message.role} "
                f"message {content.strip()[:60]!r}; set model.chat_template to a template that "
                "writes it"
            )
    return text


def prompt_ids(tokenizer: Tokenizer, messages: Sequence[Message]) -> list[int]:
    """Token ids of `prompt_text`.

    The template writes the BOS token where the model needs one; tokenizing its text with special
    tokens would add a second one (trl#4481). Raises InputError when the tokenizer has no chat
    template.
    """
    return list(tokenizer(prompt_text(tokenizer, messages), add_special_tokens=False)["input_ids"])


def observation_ids(tokenizer: Tokenizer, text: str) -> list[int]:
    """Token ids of observation text; an added token in it is tokenized as ordinary text."""
    return plain_ids(tokenizer, [text])[0]


def plain_ids(tokenizer: Tokenizer, texts: list[str]) -> list[list[int]]:
    """Token ids of each text, without an id of an added token.

    ``split_special_tokens`` alone keeps added tokens whole if they are not flagged special, such as
    Qwen3's ``<think>``. A text with such tokens is cut behind the first character of each.
    """
    if not texts:
        return []
    rows = tokenizer(texts, add_special_tokens=False, split_special_tokens=True)["input_ids"]
    added = markup(tokenizer).keys()
    return [
        list(row) if added.isdisjoint(row) else _ids_in_pieces(tokenizer, text)
        for text, row in zip(texts, rows, strict=True)
    ]


def _ids_in_pieces(tokenizer: Tokenizer, text: str) -> list[int]:
    tokens = token_patterns(markup(tokenizer).values())
    cuts = [match.start() + 1 for match in re.finditer(f"(?={'|'.join(tokens)})", text)]
    pieces = [text[start:end] for start, end in pairwise([0, *cuts, len(text)])]
    ids: list[int] = []
    for parts in (pieces, list(text)):  # by characters where a token is found in normalized text
        rows = tokenizer(parts, add_special_tokens=False, split_special_tokens=True)["input_ids"]
        ids = [token_id for row in rows for token_id in row]
        if markup(tokenizer).keys().isdisjoint(ids):
            break
    return ids


@lru_cache(maxsize=4)  # the tokenizer builds its table of added tokens at each call
def markup(tokenizer: Tokenizer) -> dict[int, str]:
    """The texts of the added tokens that are more than words, by id."""
    added = tokenizer.added_tokens_decoder.items()
    return {token_id: token.content for token_id, token in added if is_markup(token)}


def decode(tokenizer: Tokenizer, token_ids: Sequence[int]) -> str:
    """The text of ids, special tokens included."""
    return tokenizer.decode(
        list(token_ids), skip_special_tokens=False, clean_up_tokenization_spaces=False
    )


def segment_text(tokenizer: Tokenizer, token_ids: Sequence[int], finish: str) -> str:
    """The text of a sampled segment, without its last id where that id ended the sequence."""
    return decode(tokenizer, token_ids[:-1] if finish == "eos" else token_ids)


def mismatch(
    tokenizer: Tokenizer,
    output: str,
    spans: Sequence[Span],
    token_ids: Sequence[int],
    token_spans: Sequence[Span],
) -> str | None:
    """How text, character spans, ids and token spans disagree, or None when they agree.

    Decodes every token span: the texts must concatenate to ``output``, and their writers must be
    the writers of the character spans; neighbours of one writer count as one span. A control token
    as the last id may be absent from the text, since it ended the sequence. So masked tokens that
    are no observation are found, and trained tokens that are not the policy's text.
    """
    lengths = {"token_spans": (token_spans, len(token_ids)), "spans": (spans, len(output))}
    for name, (covering, length) in lengths.items():
        if problem := cover_error(covering, length):
            return f"{name}: {problem}"
    spans, token_spans = _joined(spans), _joined(token_spans)
    text, decoded_spans = _decoded(tokenizer, token_ids, token_spans)
    if text != output and token_ids and token_ids[-1] in control_ids(tokenizer):
        text, decoded_spans = _decoded(tokenizer, token_ids[:-1], token_spans)
    if text != output:
        offset = common_length(text, output)
        end = offset + 20
        return (
            f"ids decode to {text[offset:end]!r} at offset {offset}, "
            f"text is {output[offset:end]!r} there"
        )
    if decoded_spans != spans:
        return f"spans are {spans}, the ids give {decoded_spans}"
    return None


def _decoded(
    tokenizer: Tokenizer, token_ids: Sequence[int], token_spans: Sequence[Span]
) -> tuple[str, list[Span]]:
    """The ids decoded span by span, and the character spans of that text."""
    text, spans = "", list[Span]()
    for start, end, writer in token_spans:
        part = decode(tokenizer, token_ids[start:end])
        text += part
        spans = extend(spans, len(part), writer)
    return text, spans


@dataclass(frozen=True)
class Mask:
    """Decoded spans in order; ``trained`` may end in the end-of-turn token, which is sampled."""

    trained: list[str]
    masked: list[str]


def decode_mask(token_ids: list[int], token_spans: Sequence[Span], tokenizer: Tokenizer) -> Mask:
    """Decode the tokens of the model, and all others, span by span.

    Raises InputError when the spans do not cover the ids exactly.
    """
    problem = cover_error(token_spans, len(token_ids))
    if problem is not None:
        raise InputError(f"token_spans: {problem}")
    return Mask(
        trained=[decode(tokenizer, part) for part in pieces(token_ids, token_spans, "model")],
        masked=[
            decode(tokenizer, token_ids[start:end])
            for start, end, writer in token_spans
            if writer != "model"
        ],
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


def _joined(spans: Sequence[Span]) -> list[Span]:
    """The same pieces without empty spans; neighbours of one writer are one span."""
    joined: list[Span] = []
    for start, end, writer in spans:
        joined = extend(joined, end - start, writer)
    return joined
