"""The policy as a plain chat model, for agents that run their own loop with their own tools.

Input: a request for a chat completion, with ``messages`` and ``tools``. Output: the sampled turn in
OpenAI's form. The conversation is rendered by the policy's own chat template, as roll-outs are
(`pipeline.conversations`), and the sampled ids are parsed into text, reasoning and ``tool_calls``.
A malformed turn is a message with its text and without calls.
"""

from __future__ import annotations

import asyncio
import json
import secrets
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import lru_cache, partial
from typing import Annotated, Any, Literal, TypeVar, TypeVarTuple

from pydantic import BaseModel, Field

from pipeline.conversations.chat_template import ChatTemplate
from pipeline.conversations.messages import REASONING, Message, split_turns, uniform
from pipeline.conversations.turn_parser import ParsedTurn, TurnParser
from pipeline.core.errors import InputError
from pipeline.core.input_files import parse_json
from pipeline.grammars.tokenizer import Tokenizer
from pipeline.llm.engine import GenerationRequest, GenerationResult
from pipeline.serving.completions import Asked, completion
from pipeline.serving.policy import ServedPolicy

T = TypeVar("T")
Ts = TypeVarTuple("Ts")
_TEMPLATES = 64  # sets of tools whose templates and parsers are kept
_NO_TOOL = {"type": "function", "function": {"name": "none", "parameters": {"type": "object"}}}


@dataclass(frozen=True)
class Decoding:
    """Defaults of requests, and the settings of the model."""

    temperature: float
    top_p: float
    max_tokens: int  # of a turn
    max_model_len: int
    thinking: bool | None


class _Format(BaseModel):
    type: Literal["text"]


class TurnRequest(Asked):
    """The fields that are read. A forced call or a JSON format would need guided decoding."""

    messages: Annotated[list[dict[str, Any]], Field(min_length=1)]
    tools: list[dict[str, Any]] | None = None
    tool_choice: Literal["auto", "none"] | None = None
    response_format: _Format | None = None
    temperature: Annotated[float, Field(ge=0, le=100)] | None = None
    top_p: Annotated[float, Field(gt=0, le=1)] | None = None
    max_tokens: Annotated[int, Field(ge=1)] | None = None
    max_completion_tokens: Annotated[int, Field(ge=1)] | None = None
    stop: str | list[str] | None = None
    seed: Annotated[int, Field(ge=0, lt=2**63)] | None = None

    @property
    def declared(self) -> list[dict[str, Any]]:
        """The tools that the model may call."""
        return [] if self.tool_choice == "none" else self.tools or []


@dataclass(frozen=True)
class Prepared:
    """A request for the engine, and the parser of its result."""

    parser: TurnParser | None
    request: GenerationRequest


@dataclass(frozen=True)
class Turn:
    """A sampled turn."""

    result: GenerationResult
    message: dict[str, Any]  # the reply in OpenAI's form
    problem: str | None  # why the turn is malformed


class PlainModel:
    """The turns of one policy; ``opened`` gives its tokenizer, when the first request comes.

    One thread renders and parses, beside the event loop.
    """

    def __init__(
        self, policy: ServedPolicy, opened: Callable[[], Tokenizer], decoding: Decoding
    ) -> None:
        self.decoding = decoding
        self._policy = policy
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="turns")
        self.tokenizer = lru_cache(opened)
        self._declared = lru_cache(_TEMPLATES)(self._new)

    async def complete(self, asked: TurnRequest, headers: Mapping[str, str]) -> dict[str, Any]:
        """The completion of a request.

        Raises InputError for a request that cannot be answered, and what `ServedPolicy.sample`
        raises.
        """
        prepared = await self.beside(self.prepare, asked, headers)
        result = await self._policy.sample(prepared.request)
        turn = await self.beside(self.finish, prepared, result)
        ended = "tool_calls" if turn.message.get("tool_calls") else "stop"
        return completion(
            asked.model or self._policy.name,
            turn.message,
            "length" if result.finish == "length" else ended,
            (len(prepared.request.prompt_ids), len(result.token_ids)),
            name=result.id,
        )

    async def beside(self, work: Callable[[*Ts], T], *arguments: *Ts) -> T:
        """The result of ``work`` in the thread of this model."""
        return await asyncio.get_running_loop().run_in_executor(self._thread, work, *arguments)

    def prepare(self, asked: TurnRequest, headers: Mapping[str, str]) -> Prepared:
        """Render a request."""
        template, parser = self.declared(asked.declared)
        messages = shown(template, numbered(received(asked)))
        return Prepared(parser, self.request(asked, template.ids(messages)))

    def request(self, asked: TurnRequest, ids: list[int]) -> GenerationRequest:
        """The request for the turn after ``ids``. Raises InputError if there is no room for it."""
        defaults = self.decoding
        room = defaults.max_model_len - len(ids)
        if room < 1:
            raise InputError(
                f"messages: the conversation has {len(ids):,} tokens, and the engine takes "
                f"{defaults.max_model_len:,} with the reply; shorten it, or raise "
                "engine.max_model_len"
            )
        longest = asked.max_completion_tokens or asked.max_tokens or defaults.max_tokens
        return GenerationRequest(
            id=f"chatcmpl-{secrets.token_hex(12)}",
            prompt_ids=ids,
            max_tokens=min(longest, room),
            stop=(asked.stop,) if isinstance(asked.stop, str) else tuple(asked.stop or ()),
            temperature=defaults.temperature if asked.temperature is None else asked.temperature,
            top_p=asked.top_p or defaults.top_p,
            seed=secrets.randbits(63) if asked.seed is None else asked.seed,
        )

    def finish(self, prepared: Prepared, result: GenerationResult) -> Turn:
        """Parse a result."""
        turn = ParsedTurn(result.text)
        if result.finish == "stop":
            stops = (stop for stop in prepared.request.stop if stop in result.text)
            turn = ParsedTurn(result.text[: min(map(result.text.find, stops))])
        elif result.finish == "eos" and prepared.parser is not None:
            parsed = prepared.parser.parse(result.token_ids)
            turn = replace(turn, problem=parsed.problem) if parsed.problem else parsed
        return Turn(result, _reply(turn), turn.problem)

    def declared(
        self, tools: Sequence[Mapping[str, Any]]
    ) -> tuple[ChatTemplate, TurnParser | None]:
        """The template and the parser of conversations with ``tools``.

        Raises InputError for malformed tools, and for a chat template that leaves them out.
        """
        return self._declared(json.dumps(tools))

    def _new(self, tools: str) -> tuple[ChatTemplate, TurnParser | None]:
        from jsonschema import Draft202012Validator, SchemaError

        declared = parse_json(tools, "tools")
        for number, tool in enumerate(declared):
            function = tool.get("function")
            if not isinstance(function, dict) or not isinstance(function.get("name"), str):
                raise InputError(f"tools.{number}: a tool needs function.name")
            try:
                Draft202012Validator.check_schema(function.get("parameters") or {})
            except SchemaError as error:
                raise InputError(f"tools.{number}.function.parameters: {error.message}") from None
        opened = partial(ChatTemplate, self.tokenizer(), thinking=self.decoding.thinking)
        if declared:
            template = opened(declared)
            template.check()
            return template, TurnParser(template)
        with suppress(InputError):  # a template without tools: the text is the answer
            return opened(), TurnParser(opened([_NO_TOOL]))
        return opened(), None


def received(asked: TurnRequest) -> list[Message]:
    """The uniform messages of a request.

    Raises InputError for malformed messages, and unless they end with a user's or a tool's.
    """
    messages = uniform(asked.messages)
    if messages[-1]["role"] == "assistant":
        raise InputError("messages: the last is an assistant's; end with a user's or a tool's")
    return messages


def shown(template: ChatTemplate, messages: Sequence[Message]) -> list[Message]:
    """Uniform messages as the template gets them, with added tokens escaped."""
    prompt, turns = split_turns(messages)
    escaped = template.prompt_messages(prompt)
    for turn, *inserted in turns:
        escaped += template.prompt_messages([turn])
        escaped += template.inserted_messages(turn, inserted)
    return escaped


def numbered(messages: Sequence[Message]) -> list[Message]:
    """Uniform messages whose calls are named by their place, as in roll-outs."""
    names: dict[str, str] = {}
    shown = []
    for number, message in enumerate(messages):
        calls = []
        for place, call in enumerate(message.get("tool_calls", ())):
            own = f"call{number:03d}{place:02d}"
            names[call.get("id", own)] = own
            calls.append(call | {"id": own})
        answered = message.get("tool_call_id")
        shown.append(
            message
            | ({"tool_calls": calls} if calls else {})
            | ({"tool_call_id": names.get(answered, answered)} if answered else {})
        )
    return shown


def _reply(turn: ParsedTurn) -> dict[str, Any]:
    """The message of a turn; the ids of calls are unique, so that clients can tell them apart."""
    message: dict[str, Any] = {"role": "assistant", "content": turn.content or None}
    if turn.reasoning:
        message[REASONING[0]] = turn.reasoning
    if turn.calls:
        message["tool_calls"] = [
            {
                "id": f"call_{secrets.token_hex(8)}",
                "type": "function",
                "function": {"name": call.name, "arguments": json.dumps(call.arguments)},
            }
            for call in turn.calls
        ]
    return message
