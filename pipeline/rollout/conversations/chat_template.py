"""Token ids of a conversation, each with its writer, from the model's own chat template.

The ids of a trajectory with n assistant turns are ``prompt + m_1 + f_1 + m_2 + ... + m_n``. m_t is
sampled and trained, up to its end-of-turn token. f_t is the *frame*, which the template writes from
there to the next generation prompt, with the tool results inside; neither is trained. Sampled ids
are never decoded and tokenized again (trl#5224).

A frame comes from one rendering of a dummy conversation, whose call holds a sentinel and whose
results stand between marks. The difference of two renderings fails where the template treats
the last turn in another way: Qwen3 adds an empty think block to it. The frame is tokenized in one
call, because its borders would otherwise differ from what servers produce.
"""

from __future__ import annotations

import hashlib
import itertools
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from pipeline.core.errors import InputError
from pipeline.core.input_files import read_json
from pipeline.core.records import Span
from pipeline.core.spans import common_length, extend, joined
from pipeline.llm.tokenizer import Tokenizer
from pipeline.llm.tokens import DATE, decode, escaped_in_prompts, markup, rendered
from pipeline.rollout.conversations.messages import (
    Message,
    Tool,
    calls_of,
    split_turns,
    tool_call,
    uniform,
    with_escapes,
)

_MOST_CHARACTERS = 16  # of a token, in texts that people and programs write
_TAG = re.compile(r"<[/|]?[^\s<>|]+\|?>|\[/?[A-Z_]+\]")
_REASONING = "It is not known."
QUESTION: Message = {"role": "user", "content": "x"}


@dataclass(frozen=True)
class Frame:
    """What the template writes between two turns.

    ``ids`` [T] have the token spans ``spans``; a token that holds text of a result counts as
    observation. ``end`` is the end-of-turn token before the frame, as the template writes it.
    ``lengths`` are the tokens of each result.
    """

    text: str
    ids: list[int]
    spans: list[Span]
    end: str
    lengths: list[int]


@dataclass(frozen=True)
class Built:
    """A conversation as ids: ``token_spans`` cover ``token_ids``, which follow ``prompt_ids``.

    ``mismatch`` says where the ids differ from the template's rendering of the whole, else empty.
    """

    prompt_ids: list[int]
    token_ids: list[int]
    token_spans: list[Span]
    mismatch: str


@dataclass(frozen=True)
class _Reference:
    """The fixed parts of a frame, from results ``x``."""

    added: list[int]  # ids of its added tokens, in order
    escaped: tuple[str, ...]  # added tokens, and the tags that the template writes around results


def end_of_turn_ids(tokenizer: Tokenizer) -> frozenset[int]:
    """The ids that end a turn: the EOS of ``generation_config.json`` and of the tokenizer."""
    config = Path(tokenizer.name_or_path) / "generation_config.json"
    named = read_json(config).get("eos_token_id") if config.is_file() else None
    found = [*(named if isinstance(named, list) else [named]), tokenizer.eos_token_id]
    return frozenset(token_id for token_id in found if token_id is not None)


def _probe(tools: Sequence[Tool], thinking: bool, text: str) -> list[Message]:
    """Two calls and an answer, with ``text`` beside the first call, reasoning if ``thinking``."""
    name = tools[0]["function"]["name"] if tools else "search"
    reasoning = {"reasoning_content": _REASONING} if thinking else {}
    turns: list[Message] = []
    for content, query in ((text, "who?"), ("", 'where is "X"?')):
        call = tool_call(name, {"query": query}, f"call{len(turns):05d}")
        turns += [
            {"role": "assistant", "content": content, "tool_calls": [call], **reasoning},
            {"role": "tool", "content": f"A result.\n{query}", "tool_call_id": call["id"]},
        ]
    return [
        {"role": "system", "content": "Search."},
        {"role": "user", "content": "Who?"},
        *turns,
        {"role": "assistant", "content": "Found.\nAnswer: X", **reasoning},
    ]


class ChatTemplate:
    """A tokenizer's chat template with declared tools.

    ``thinking`` is the template's ``enable_thinking``; None leaves it to the template. ``end_ids``
    end a turn. The tokenizer must be a fast one, which knows the characters of its tokens. Of a
    text of more than ``longest`` tokens only the beginning is tokenized, and InputError is raised.
    """

    def __init__(
        self,
        tokenizer: Tokenizer,
        tools: Sequence[Tool] = (),
        *,
        thinking: bool | None = None,
        end_ids: Iterable[int] | None = None,
        longest: int | None = None,
    ) -> None:
        self.tokenizer = tokenizer
        self._longest = longest
        self.tools = list(tools)
        self.end_ids = end_of_turn_ids(tokenizer) if end_ids is None else frozenset(end_ids)
        self.ends = tuple(decode(tokenizer, [token_id]) for token_id in sorted(self.end_ids))
        self._arguments: dict[str, Any] = {"tools": self.tools or None}
        self.thinking = thinking
        if thinking is not None:
            self._arguments["enable_thinking"] = thinking
        self._references: dict[Any, _Reference] = {}

    @property
    def source(self) -> str:
        """The text of the template; of several, which Hermes and Command R have, the one used."""
        named = self.tokenizer.chat_template or ""
        if isinstance(named, str):
            return named
        return (named.get("tool_use") if self.tools else None) or named.get("default", "")

    @property
    def identity(self) -> dict[str, str | bool | None]:
        """The hash of the template and its arguments, for the lineage of a policy."""
        return {
            "sha256": hashlib.sha256(self.source.encode()).hexdigest()[:16],
            "thinking": self.thinking,
            "date": DATE,
        }

    def render(self, messages: Sequence[Message], *, generation_prompt: bool) -> str:
        """The template applied to uniform messages.

        Raises InputError, which names ``model.chat_template``, for a template that fails.
        """
        return rendered(self.tokenizer, list(messages), generation_prompt, **self._arguments)

    def prompt_messages(self, messages: Sequence[Message]) -> list[Message]:
        """The messages before the first turn, with added tokens escaped."""
        return with_escapes(messages, escaped_in_prompts(self.tokenizer))

    def ids(self, messages: Sequence[Message]) -> list[int]:
        """Token ids of the messages with the generation prompt."""
        return self._ids(self.render(messages, generation_prompt=True))

    def inserted_messages(self, turn: Message, inserted: Sequence[Message]) -> list[Message]:
        """Results after ``turn``, stripped, with added tokens and the template's tags escaped."""
        stripped = [message | {"content": message["content"].strip()} for message in inserted]
        return with_escapes(stripped, self._reference(turn, inserted).escaped)

    @cached_property
    def generation_prompt(self) -> str:
        """What the template writes before a turn, after a question."""
        return self.render([QUESTION], generation_prompt=True)

    def turn_text(self, message: Message) -> str:
        """What the model writes for an assistant's message, up to the end-of-turn token.

        The token is missing where the template writes it only with the next message.
        """
        whole = self.render([QUESTION, message], generation_prompt=False)
        text = whole[common_length(self.generation_prompt, whole) :]
        found = [text.rfind(end) + len(end) for end in self.ends if end in text]
        return text[: max(found, default=len(text))]

    def frame(self, turn: Message, inserted: Sequence[Message]) -> Frame:
        """The frame after ``turn`` around the ``inserted`` results, or around a user's message.

        Raises InputError when the template leaves a result out or writes no end-of-turn token, or
        when a result brings in an added token, which escaping prevents.
        """
        messages = self.inserted_messages(turn, inserted)
        text, results, end = self._frame_text(turn, messages)
        self._check_length(text)
        tokenizer: Any = self.tokenizer
        encoded = tokenizer(text, add_special_tokens=False, return_offsets_mapping=True)
        ids = list(encoded["input_ids"])
        if self._added_ids(ids) != self._reference(turn, inserted).added:
            raise InputError(
                f"{self._name}: a tool result brings in an added token: {text[:200]!r}; "
                "please report it"
            )
        spans: list[Span] = []
        lengths = [0] * len(results)
        for first, last in encoded["offset_mapping"]:
            inside = [n for n, (start, stop) in enumerate(results) if first < stop and last > start]
            for number in inside[:1]:
                lengths[number] += 1
            spans = extend(spans, 1, "observation" if inside else "frame")
        return Frame(text, ids, spans, end, lengths)

    def written_turn(self, turn: Message, inserted: Sequence[Message]) -> Frame:
        """A turn of the assistant that no policy wrote, and the frame after it, as one frame."""
        frame = self.frame(turn, inserted)
        text = self._ended(turn, frame)
        ids = self._ids(text)
        spans = joined(extend((), len(ids), "frame"), frame.spans)
        return Frame(text + frame.text, ids + frame.ids, spans, frame.end, frame.lengths)

    def build(self, conversation: Sequence[Mapping[str, Any]]) -> Built:
        """The ids of a conversation, with the assistant's turns as the template writes them.

        Raises InputError for malformed messages, for an end-of-turn token inside an assistant's
        text, and what `frame` raises.
        """
        prompt, turns = split_turns(uniform(conversation))
        shown = self.prompt_messages(prompt)
        text = self.render(shown, generation_prompt=True)
        prompt_ids, ids, spans = self.ids(shown), list[int](), list[Span]()
        for number, (message, *inserted) in enumerate(turns):
            more = inserted or number + 1 < len(turns)
            frame = self.frame(message, inserted) if more else None
            written = self._ended(message, frame)
            model = self._ids(written)
            if not self.end_ids.isdisjoint(model[:-1]):
                raise InputError(
                    f"messages: an assistant's text holds one of {', '.join(self.ends)}, which "
                    "ends a turn; remove it"
                )
            ids, spans, text = ids + model, extend(spans, len(model), "model"), text + written
            shown.append(message)
            if frame is not None:
                shown += self.inserted_messages(message, inserted)
                ids, text = ids + frame.ids, text + frame.text
                spans = joined(spans, frame.spans)
        return Built(prompt_ids, ids, spans, self._mismatch(shown, text, [*prompt_ids, *ids]))

    def check(self) -> str:
        """Build a probe conversation; how the template's own rendering differs, empty if equal.

        Raises InputError, which names ``model.chat_template``, for a template that refuses or drops
        tools, calls or results.
        """
        if self.tools and not any(
            tool["function"]["name"] in self.generation_prompt for tool in self.tools
        ):
            raise self._unfit("leaves out the tools")
        thinks = self.thinking is not False
        try:
            conversation = _probe(self.tools, thinks, "I search.")
            mismatch = self.build(conversation).mismatch
        except InputError:  # gpt-oss refuses text beside reasoning and a call
            conversation = _probe(self.tools, thinks, "")
            mismatch = self.build(conversation).mismatch
        turns = [message for message in uniform(conversation) if message["role"] == "assistant"]
        if self.thinking and any(_REASONING not in self.turn_text(message) for message in turns):
            return mismatch or "the template leaves out reasoning that the model writes"
        return mismatch

    def _ended(self, message: Message, frame: Frame | None) -> str:
        """The text of a turn, with the end-of-turn token if a ``frame`` follows."""
        text = self.turn_text(message)
        return text if frame is None or text.endswith(self.ends) else text + frame.end

    def _mismatch(self, shown: Sequence[Message], text: str, ids: list[int]) -> str:
        """How the template's rendering of ``shown`` differs from ``text`` and its ``ids``."""
        whole = self.render(shown, generation_prompt=shown[-1]["role"] != "assistant")
        at = common_length(whole, text)
        if at < len(text) or whole[at:].strip():
            return (
                f"after {text[max(0, at - 20) : at]!r} the template writes "
                f"{whole[at : at + 30]!r}, the conversation has {text[at : at + 30]!r}"
            )
        expected = self._ids(whole[:at])
        if expected == ids:
            return ""
        first = common_length(expected, ids)
        return (
            f"the template's text has the token {decode(self.tokenizer, expected[first:][:1])!r} "
            f"at position {first}, the conversation has {decode(self.tokenizer, ids[first:][:1])!r}"
        )

    def _frame_text(
        self, turn: Message, inserted: Sequence[Message]
    ) -> tuple[str, list[tuple[int, int]], str]:
        """The frame, the characters of its results, and the end-of-turn token before it."""
        contents = " ".join(message["content"] for message in inserted)
        names = (f"frame{number}" for number in itertools.count())
        mark = next(name for name in names if name not in contents)
        marked = [
            message | {"content": f"{mark}a{message['content']}{mark}b"} for message in inserted
        ]
        tail = self._after_turn(turn, marked, f"{mark}c")
        if not self.ends:
            raise InputError(
                f"the tokenizer of {self.tokenizer.name_or_path} has no end-of-turn token; set "
                "eos_token in its files"
            )
        ends = [(tail.find(end), end) for end in self.ends if end in tail]
        if not ends:
            raise InputError(
                f"{self._name} writes no {' or '.join(self.ends)} after a tool call, so no "
                "turn would end; set model.chat_template to a template that writes it"
            )
        at, end = min(ends)
        parts = re.split(f"{mark}[ab]", tail[at + len(end) :])
        if len(parts) != 2 * len(inserted) + 1:
            raise self._unfit("leaves out a tool's result or writes it twice")
        starts = [0, *itertools.accumulate(map(len, parts))]
        return "".join(parts), list(itertools.pairwise(starts))[1::2], end

    def _after_turn(self, turn: Message, inserted: Sequence[Message], sentinel: str) -> str:
        """The rendering after the last ``sentinel`` in a turn that calls the tools of ``turn``."""
        calls = [
            {**call, "function": {**call["function"], "arguments": {"query": sentinel}}}
            for call in turn.get("tool_calls", ())
        ]
        dummy: Message = {"role": "assistant", "content": sentinel}
        if calls:
            dummy |= {"content": "", "tool_calls": calls}
        try:
            text = self.render([QUESTION, dummy, *inserted], generation_prompt=True)
        except InputError:  # some templates refuse several calls
            if not calls[1:]:
                raise
            dummy["tool_calls"] = calls[:1]
            text = self.render([QUESTION, dummy, *inserted], generation_prompt=True)
        if sentinel not in text:
            raise self._unfit("leaves out tool calls")
        return text.rpartition(sentinel)[2]

    def _reference(self, turn: Message, inserted: Sequence[Message]) -> _Reference:
        # By the order of their calls: ids of logs differ in each frame, and would fill the memory.
        ids = {call.id: f"call{number:05d}" for number, call in enumerate(calls_of(turn))}
        plain = [message | {"content": "x"} for message in inserted]
        for message in plain:
            if "tool_call_id" in message:
                message["tool_call_id"] = ids.get(message["tool_call_id"], "call99999")
        key = (
            tuple((call.name, call.id and ids[call.id]) for call in calls_of(turn)),
            tuple((each["role"], each.get("name"), each.get("tool_call_id")) for each in plain),
        )
        if key not in self._references:
            calls = [
                call | ({"id": ids[call["id"]]} if "id" in call else {})
                for call in turn.get("tool_calls", ())
            ]
            named = turn | ({"tool_calls": calls} if calls else {})
            text, results, _ = self._frame_text(named, plain)
            fixed = text
            for start, stop in reversed(results):
                fixed = f"{fixed[:start]}\n{fixed[stop:]}"
            tags = {tag.replace("</", "<") for tag in _TAG.findall(fixed)}
            both = (tag for tag in tags for tag in (tag, tag.replace("<", "</")))
            tokens = (*escaped_in_prompts(self.tokenizer), *sorted(both))
            self._references[key] = _Reference(self._added_ids(self._ids(text)), tokens)
        return self._references[key]

    def _check_length(self, text: str) -> None:
        size = _MOST_CHARACTERS * (self._longest or len(text))
        while size < len(text):
            ids = self.tokenizer(text[:size], add_special_tokens=False)["input_ids"]
            if len(ids) > (self._longest or 0):
                raise InputError(
                    f"messages: the conversation has more than {self._longest:,} tokens, which the "
                    "engine takes with the reply; shorten it, or raise engine.max_model_len"
                )
            size *= 2

    def _ids(self, text: str) -> list[int]:
        self._check_length(text)
        return list(self.tokenizer(text, add_special_tokens=False)["input_ids"])

    def _added_ids(self, ids: Iterable[int]) -> list[int]:
        added = markup(self.tokenizer)
        return [token_id for token_id in ids if token_id in added]

    @property
    def _name(self) -> str:
        return f"the chat template of {self.tokenizer.name_or_path or 'the tokenizer'}"

    def _unfit(self, problem: str) -> InputError:
        remedy = "set model.chat_template to a template for tools"
        return InputError(f"{self._name} {problem}; {remedy}")
