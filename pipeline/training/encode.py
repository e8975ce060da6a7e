"""Recorded texts and ids to the ids, labels and masks that the trainers read.

SFT examples carry character spans, or are conversations whose ids and writers come from the chat
template (`ChatTemplate.build`). Prompt, model text and observation text are tokenized
separately, exactly as the sampler splices observation ids between sampled ids, so that training
sees the token boundaries of sampling. Labels are the ids on model-written tokens and on the closing
end-of-turn token, and ``IGNORED`` on the prompt and on observations (TeaRAG, arXiv 2511.05385, eq.
4). Preference pairs bring their sampled ids and token spans and are never tokenized again. The mask
of every record is decoded and compared with its text (`pipeline.training.checks`). Control tokens
inside a completion are refused. Tokens that the policy itself sampled into a rejected trajectory
are allowed, because they are the fault that training penalizes.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Literal, Protocol, TypeVar

from pipeline.core.errors import TrainingError
from pipeline.core.input_files import parse_json
from pipeline.core.record_io import as_json
from pipeline.core.records import ChatMessage, Pair, SftExample, Span, Writer
from pipeline.core.spans import cover_error, extend, pieces, written_mask
from pipeline.llm.tokenizer import Tokenizer
from pipeline.llm.tokens import control_ids, decode, plain_ids, prompt_text
from pipeline.rollout.conversations.chat_template import ChatTemplate
from pipeline.training.checks import (
    check_control_tokens,
    check_ids,
    check_mask,
    check_text,
    check_turns,
    checked_ids,
    of_record,
    same_text,
)

IGNORED = -100  # the label that cross-entropy skips, by torch's convention
_REBUILD, _REPAIR = "build sft-data again", "build the pairs again"
_RESIZE = "resize the model's embeddings to its tokenizer (resize_token_embeddings), and save both"


@dataclass(frozen=True, slots=True)
class EncodedSft:
    """One supervised sequence: ``input_ids`` [T] and ``labels`` [T]."""

    id: str
    input_ids: list[int]
    labels: list[int]

    @classmethod
    def masked(cls, name: str, prompt: list[int], ids: list[int], mask: list[int]) -> EncodedSft:
        """A prompt [P] and its completion [T], which is trained where ``mask`` [T] is 1."""
        labels = [token if trained else IGNORED for token, trained in zip(ids, mask, strict=True)]
        return cls(name, [*prompt, *ids], [IGNORED] * len(prompt) + labels)

    @property
    def length(self) -> int:
        return len(self.input_ids)

    @property
    def tokens(self) -> int:
        return len(self.input_ids)

    @property
    def trained_tokens(self) -> int:
        return len(self.labels) - self.labels.count(IGNORED)


@dataclass(frozen=True, slots=True)
class EncodedPair:
    """One preference pair: ids [P], [C], [R], and masks over the completions, 1 on model tokens."""

    id: str
    prompt_ids: list[int]
    chosen_ids: list[int]
    rejected_ids: list[int]
    chosen_mask: list[int]
    rejected_mask: list[int]

    @property
    def length(self) -> int:
        return len(self.prompt_ids) + max(len(self.chosen_ids), len(self.rejected_ids))

    @property
    def tokens(self) -> int:
        return 2 * len(self.prompt_ids) + len(self.chosen_ids) + len(self.rejected_ids)

    @property
    def trained_tokens(self) -> int:
        return sum(self.chosen_mask) + sum(self.rejected_mask)

    def chosen_example(self) -> EncodedSft:
        """The chosen side as a supervised sequence."""
        return EncodedSft.masked(self.id, self.prompt_ids, self.chosen_ids, self.chosen_mask)


class Encoded(Protocol):
    """A record with a name.

    ``length`` is the length of its longest sequence. ``tokens`` and ``trained_tokens`` count all
    its sequences, the latter only the tokens that the loss reads.
    """

    @property
    def id(self) -> str: ...
    @property
    def length(self) -> int: ...
    @property
    def tokens(self) -> int: ...
    @property
    def trained_tokens(self) -> int: ...


E = TypeVar("E", bound=Encoded)


def encode_sft(
    tokenizer: Tokenizer,
    examples: Sequence[SftExample],
    vocabulary: int | None = None,
    first: int = 1,
    thinking: bool | None = None,
) -> list[EncodedSft]:
    """Tokenize and mask supervised examples, in order; sampled ones keep their ids.

    ``tokenizer`` must have a chat template and an end-of-turn token. ``vocabulary`` is the number
    of token ids of the model (None: unknown), ``first`` the number of the first example in its
    file, and ``thinking`` the ``enable_thinking`` of conversations. Raises TrainingError when the
    spans of an example leave a gap, it has no model-written token, its ids hold a doubled or
    misplaced control token or one that the vocabulary lacks, or its decoded mask differs from its
    text, InputError when the chat template refuses its messages. All name the record.
    """
    templates = {
        tools: ChatTemplate(tokenizer, parse_json(tools or "[]", "tools"), thinking=thinking)
        for tools in {example.tools for example in examples if example.messages}
    }

    made: list[EncodedSft] = []
    for number, example in enumerate(examples, start=first):
        with of_record(f"record {number}, example {example.example_id}"):
            if example.token_ids:
                made.append(_as_sampled(tokenizer, example, vocabulary))
                continue
            if example.messages:
                made.append(_from_messages(templates[example.tools], example))
            else:
                made.append(_from_text(tokenizer, example))
            check_ids(made[-1].input_ids, vocabulary, _RESIZE)
    return made


def _as_sampled(tokenizer: Tokenizer, example: SftExample, vocabulary: int | None) -> EncodedSft:
    prompt, ids = example.prompt_ids, example.token_ids
    with of_record("prompt"):
        check_ids(prompt, vocabulary, _REBUILD)
    check_ids(ids, vocabulary, _REBUILD)
    mask = _mask(tokenizer, prompt, ids, example.token_spans, example.completion, _REBUILD)
    return EncodedSft.masked(example.example_id, prompt, ids, mask)


def _from_messages(template: ChatTemplate, example: SftExample) -> EncodedSft:
    """Every turn of the assistant and the token that ends it are trained."""
    built = template.build([as_json(one) for one in (*example.prompt, *example.messages)])
    ids, spans = built.token_ids, built.token_spans
    if ids[-1] not in template.end_ids:  # which some templates write with the next message only
        assert template.tokenizer.eos_token_id is not None
        ids, spans = [*ids, template.tokenizer.eos_token_id], extend(spans, 1, "model")
    mask = _mask(
        template.tokenizer, built.prompt_ids, ids, spans, "", _REBUILD, turns=example.messages
    )
    return EncodedSft.masked(example.example_id, built.prompt_ids, ids, mask)


def _from_text(tokenizer: Tokenizer, example: SftExample) -> EncodedSft:
    problem = cover_error(example.spans, len(example.completion))
    if problem is not None:
        raise TrainingError(f"{problem}; {_REBUILD}")
    text = prompt_text(tokenizer, example.prompt)
    [prompt] = _ids(tokenizer, [text])
    remedy = "the tokenizer does not reproduce the prompt; set model.base to another model"
    check_text(decode(tokenizer, prompt), text, "prompt: ids", remedy)
    written = pieces(example.completion, example.spans, "model")
    observed = pieces(example.completion, example.spans, "observation")
    parts: dict[Writer, Iterator[list[int]]] = {
        "model": iter(_ids(tokenizer, written)),
        "observation": iter(plain_ids(tokenizer, observed)),
    }
    ids: list[int] = []
    token_spans: list[Span] = []
    for _, _, writer in example.spans:
        part = next(parts[writer])
        token_spans.append((len(ids), len(ids) + len(part), writer))
        ids += part
    check_control_tokens(tokenizer, prompt, ids)
    check_mask(tokenizer, ids, token_spans, example.completion, example.spans)
    mask = _written(token_spans, _REBUILD)
    eos = tokenizer.eos_token_id
    assert eos is not None  # check_control_tokens refuses such a tokenizer
    return EncodedSft.masked(example.example_id, prompt, [*ids, eos], [*mask, 1])


def _ids(tokenizer: Tokenizer, texts: list[str]) -> list[list[int]]:
    return tokenizer(texts, add_special_tokens=False)["input_ids"] if texts else []


def encode_pairs(
    tokenizer: Tokenizer, pairs: Sequence[Pair], vocabulary: int | None = None, first: int = 1
) -> list[EncodedPair]:
    """Masks over the recorded ids of preference pairs, in order.

    ``vocabulary`` is the number of token ids of the model (None: unknown) and ``first`` the number
    of the first pair in its file. Raises TrainingError when an id is not in the vocabulary, token
    spans do not cover the ids, a side has no model-written token, control tokens are doubled or
    misplaced (unless the policy sampled them into a malformed trajectory), or the decoded ids
    differ from the recorded text.

    A pair is left out whose chosen trajectory is malformed by such a token, as ``pairs.terms:
    outcome`` may choose it: it would teach the policy to open and close turns.
    """
    made: list[EncodedPair] = []
    for number, pair in enumerate(pairs, start=first):
        if pair.chosen_rewards.get("format") == 0 and _writes_control_tokens(tokenizer, pair):
            continue
        with of_record(f"record {number}, pair {pair.chosen_id} > {pair.rejected_id}"):
            made.append(_encode_pair(tokenizer, pair, vocabulary))
    return made


def _writes_control_tokens(tokenizer: Tokenizer, pair: Pair) -> bool:
    """Whether the policy sampled a control token into the chosen trajectory before its end."""
    recorded = _text_of(pair.chosen)
    body = _without_closing(tokenizer, pair.chosen_ids, pair.chosen_spans, recorded)
    every = checked_ids(body, pair.chosen_spans, sampled=False)
    retrieved = checked_ids(body, pair.chosen_spans, sampled=True)
    written = {a for a, b in zip(every, retrieved, strict=True) if a is not None and b is None}
    return not control_ids(tokenizer).isdisjoint(written)


def _encode_pair(tokenizer: Tokenizer, pair: Pair, vocabulary: int | None) -> EncodedPair:
    with of_record("prompt"):
        check_ids(pair.prompt_ids, vocabulary, _REPAIR)
    masks: list[list[int]] = []
    for side, ids, spans, messages in (
        ("chosen", pair.chosen_ids, pair.chosen_spans, pair.chosen),
        ("rejected", pair.rejected_ids, pair.rejected_spans, pair.rejected),
    ):
        with of_record(side):
            check_ids(ids, vocabulary, _REPAIR)
            mask = _mask(
                tokenizer, pair.prompt_ids, ids, spans, _text_of(messages), _REPAIR,
                sampled=side == "rejected", turns=messages if pair.tools else (),
            )  # fmt: skip
            masks.append(mask)
    name = f"{pair.chosen_id}>{pair.rejected_id}"
    return EncodedPair(name, pair.prompt_ids, pair.chosen_ids, pair.rejected_ids, *masks)


def _text_of(messages: Sequence[ChatMessage]) -> str:
    return "".join(message.content for message in messages)


def _mask(
    tokenizer: Tokenizer,
    prompt_ids: list[int],
    ids: list[int],
    spans: Sequence[Span],
    recorded: str,
    remedy: str,
    *,
    sampled: bool = False,
    turns: Sequence[ChatMessage] = (),
) -> list[int]:
    """The mask [T] of recorded ``ids``, after all checks of the ids against the recorded text.

    With ``sampled``, the policy may have written control tokens. The ids of a conversation are
    checked against the texts of its ``turns`` instead.
    """
    problem = cover_error(spans, len(ids))
    if problem is not None:
        raise TrainingError(f"{problem}; {remedy}")
    mask = _written(spans, remedy)
    body = _without_closing(tokenizer, ids, spans, recorded)
    check_control_tokens(tokenizer, prompt_ids, checked_ids(body, spans, sampled=sampled))
    if turns:
        check_turns(tokenizer, ids, spans, turns)
    else:
        check_text(_text(tokenizer, body, spans), recorded, "ids", remedy)
    return mask


def _written(spans: Sequence[Span], remedy: str) -> list[int]:
    """The mask of spans. Raises TrainingError where the model wrote none."""
    mask = written_mask(spans)
    if not any(mask):
        raise TrainingError(f"no token is model-written; {remedy}")
    return mask


def _without_closing(
    tokenizer: Tokenizer, ids: list[int], spans: Sequence[Span], recorded: str
) -> list[int]:
    """``ids`` without a final control token that ended the sequence and is not part of the text."""
    ended = bool(ids) and ids[-1] in control_ids(tokenizer)
    return ids[:-1] if ended and not same_text(_text(tokenizer, ids, spans), recorded) else ids


def _text(tokenizer: Tokenizer, ids: list[int], spans: Sequence[Span]) -> str:
    return "".join(decode(tokenizer, ids[start:end]) for start, end, _ in spans)


@dataclass
class WithinLength:
    """The records of at most ``max_length`` tokens.

    Records are never truncated: a trajectory without its end would teach the model not to end.
    ``block`` is the configuration block ("sft", "dpo" or "grpo") for error messages. After the last
    record, TrainingError is raised when ``over_long`` is "refuse" and a record was too long, or
    when all were too long.
    """

    max_length: int
    over_long: Literal["refuse", "drop"]
    block: str
    dropped: int = 0

    def __call__(self, records: Iterable[E]) -> Iterator[E]:
        """Yield the records that are short enough."""
        kept = 0
        longest, shortest = ("", 0), 0
        for record in records:
            if record.length <= self.max_length:
                kept += 1
                yield record
                continue
            self.dropped += 1
            shortest = min(shortest or record.length, record.length)
            longest = max(longest, (record.id, record.length), key=lambda named: named[1])
        if self.dropped and self.over_long == "refuse":
            raise TrainingError(
                f"{self.block}.max_length is {self.max_length}, but {self.dropped} of "
                f"{kept + self.dropped} sequences are longer (the longest, {longest[0]}, has "
                f"{longest[1]} tokens); raise {self.block}.max_length, or set "
                f"{self.block}.over_long: drop to leave them out"
            )
        if self.dropped and not kept:
            raise TrainingError(
                f"{self.block}.max_length is {self.max_length}, but all sequences are longer (the "
                f"shortest has {shortest} tokens); raise {self.block}.max_length"
            )


@dataclass
class Distinct:
    """The pairs whose sides differ.

    An identical pair has no gradient but counts in means. After the last pair, TrainingError is
    raised for such a pair when ``over_long`` (the setting for unusable records) is "refuse".
    """

    over_long: Literal["refuse", "drop"]
    dropped: int = 0

    def __call__(self, records: Iterable[EncodedPair]) -> Iterator[EncodedPair]:
        """Yield the pairs whose sides differ."""
        kept, first = 0, ""
        for pair in records:
            if pair.chosen_ids != pair.rejected_ids:
                kept += 1
                yield pair
            else:
                first = first or pair.id
                self.dropped += 1
        if self.dropped and self.over_long == "refuse":
            raise TrainingError(
                f"{self.dropped} of {kept + self.dropped} pairs have identical chosen and rejected "
                f"ids (first: {first}); build the pairs again, or set dpo.over_long: drop"
            )
