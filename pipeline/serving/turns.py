"""The policy as a plain chat model, for agents that run their own loop with their own tools.

Input: a request for a chat completion, with ``messages`` and ``tools``. Output: the sampled turn in
OpenAI's form. The conversation is rendered by the policy's own chat template, as roll-outs are
(`pipeline.rollout.conversations`), and the sampled ids are parsed into text, reasoning and
``tool_calls``. A malformed turn is a message with its text and without calls.
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

from pydantic import AfterValidator, BaseModel, BeforeValidator, Field, TypeAdapter

from pipeline.core.errors import InputError
from pipeline.core.input_files import parse_json
from pipeline.llm.engine import GenerationRequest, GenerationResult
from pipeline.llm.tokenizer import Tokenizer
from pipeline.rollout.conversations.call_grammar import turn_grammar
from pipeline.rollout.conversations.chat_template import ChatTemplate
from pipeline.rollout.conversations.json_schemas import check_schema, schema_problem
from pipeline.rollout.conversations.messages import (
    REASONING,
    Message,
    split_turns,
    tool_call,
    uniform,
)
from pipeline.rollout.conversations.turn_parser import ParsedTurn, TurnParser
from pipeline.serving.completions import Asked, completion
from pipeline.serving.policy import ServedPolicy

T = TypeVar("T")
Ts = TypeVarTuple("Ts")
_TEMPLATES = 64  # sets of tools whose templates and parsers are kept
_LONGEST_TOOLS = 500_000  # characters of their JSON
_PIECE = 8  # characters for each token that the engine takes
_NO_TOOL = {"type": "function", "function": {"name": "none", "parameters": {"type": "object"}}}


@dataclass(frozen=True)
class Decoding:
    """Defaults of requests, and the settings of the model."""

    temperature: float
    top_p: float
    max_tokens: int  # of a turn
    max_model_len: int
    thinking: bool | None


class _Function(BaseModel):
    name: Annotated[str, Field(pattern=r"^[a-zA-Z0-9_.:/-]{1,128}$")]
    description: str | None = None
    parameters: dict[str, Any] | None = None


class _Tool(BaseModel):
    type: Literal["function"] = "function"
    function: _Function


class _Named(BaseModel):
    name: str


class _Choice(BaseModel):
    type: Literal["auto", "none", "required", "function"]
    function: _Named | None = None


class _Schema(BaseModel):
    schema_: Annotated[dict[str, Any], Field(alias="schema")] = {}


class _Format(BaseModel):
    type: Literal["text", "json_object", "json_schema"]
    json_schema: _Schema | None = None


_TOOLS = TypeAdapter(list[_Tool])
_NONE = {"parameters": {"type": "object", "properties": {}}}


def _tools(given: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The tools as they were given; where parameters are missing or null, there are none."""
    _TOOLS.validate_python(given)
    functions = [tool["function"] for tool in given]
    return [
        tool | {"function": function | _NONE} if function.get("parameters") is None else tool
        for tool, function in zip(given, functions, strict=True)
    ]


def _type(choice: Any) -> Any:
    return {"type": choice} if isinstance(choice, str) else choice


def _texts(stop: Any) -> Any:
    return [stop] if isinstance(stop, str) else stop


_Text = Annotated[str, Field(min_length=1)]


class TurnRequest(Asked):
    """The fields that are served, in OpenAI's ranges."""

    messages: Annotated[list[dict[str, Any]], Field(min_length=1)]
    tools: Annotated[list[dict[str, Any]], Field(max_length=128), AfterValidator(_tools)] = Field(
        default_factory=list
    )
    tool_choice: Annotated[_Choice, BeforeValidator(_type)] = _Choice(type="auto")
    parallel_tool_calls: bool = True
    response_format: _Format = _Format(type="text")
    temperature: Annotated[float, Field(ge=0, le=2)] | None = None
    top_p: Annotated[float, Field(gt=0, le=1)] | None = None
    max_tokens: Annotated[int, Field(ge=1)] | None = None
    max_completion_tokens: Annotated[int, Field(ge=1)] | None = None
    stop: Annotated[list[_Text], Field(max_length=4), BeforeValidator(_texts)] = Field(
        default_factory=list
    )
    seed: Annotated[int, Field(ge=-(2**63), lt=2**63)] | None = None

    @property
    def declared(self) -> list[dict[str, Any]]:
        """The tools that the model may call."""
        return [] if self.tool_choice.type == "none" else self.tools

    @property
    def forced(self) -> list[dict[str, Any]]:
        """The tools of which the model must call one. Raises InputError if there is no such."""
        choice, tools = self.tool_choice, self.tools
        if choice.type == "function":
            name = choice.function.name if choice.function else None
            tools = [tool for tool in tools if tool["function"]["name"] == name]
        elif choice.type != "required":
            return []
        if not tools:
            raise InputError("tool_choice: tools has no such tool; declare it, or choose auto")
        return tools

    @property
    def answer(self) -> dict[str, Any] | None:
        """The JSON schema of an answer; None for text."""
        asked = self.response_format
        if asked.type == "json_schema":
            if asked.json_schema is None:
                raise InputError("response_format.json_schema: it is missing")
            return asked.json_schema.schema_
        return None if asked.type == "text" else {"type": "object"}


@dataclass(frozen=True)
class Prepared:
    """A request for the engine, and the parser of its result."""

    parser: TurnParser | None
    request: GenerationRequest
    asked: TurnRequest


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
        self._grammar = lru_cache(_TEMPLATES)(self._new_grammar)

    async def complete(self, asked: TurnRequest, headers: Mapping[str, str]) -> dict[str, Any]:
        """The completion of a request.

        Raises InputError for a request that cannot be answered, and what `ServedPolicy.sample`
        raises.
        """
        await self.beside(self.check_length, asked)
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

    def check_length(self, asked: TurnRequest) -> None:
        """Raises InputError for a request that is much too long, without rendering it.

        To render and tokenize megabytes would take the thread of all turns for half a minute.
        """
        shown = [{k: v for k, v in one.items() if k not in REASONING} for one in asked.messages]
        text, limit = json.dumps([shown, asked.declared]), self.decoding.max_model_len
        size, tokens = _PIECE * limit, 0
        for start in range(0, len(text) if len(text) > size else 0, size):
            part = self.tokenizer()(text[start : start + size], add_special_tokens=False)
            tokens += len(part["input_ids"])
            if tokens > 2 * limit:  # templates write less around a message than JSON
                raise InputError(
                    f"messages: they have {len(text):,} characters with the tools, and the engine "
                    f"takes {limit:,} tokens; shorten them, or raise engine.max_model_len"
                )

    def prepare(self, asked: TurnRequest, headers: Mapping[str, str]) -> Prepared:
        """Render a request."""
        template, parser = self.declared(asked.declared)
        messages = shown(template, numbered(received(asked)))
        return Prepared(parser, self.request(asked, template.ids(messages)), asked)

    def request(self, asked: TurnRequest, ids: list[int]) -> GenerationRequest:
        """The request for the turn after ``ids``.

        Raises InputError if there is no room for it, or no grammar for its form.
        """
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
            stop=tuple(asked.stop),
            temperature=defaults.temperature if asked.temperature is None else asked.temperature,
            top_p=asked.top_p or defaults.top_p,
            seed=secrets.randbits(63) if asked.seed is None else asked.seed % 2**63,
            constraint=self._constraint(asked),
        )

    def _constraint(self, asked: TurnRequest) -> str | None:
        forced, answer = asked.forced, asked.answer
        if answer is not None:
            check_schema(answer, "response_format.json_schema.schema")
        elif not forced:
            return None
        answer = None if forced else answer
        return self._grammar(json.dumps([asked.declared, forced or asked.declared, answer]))

    def _new_grammar(self, asked: str) -> str:
        declared, calls, answer = parse_json(asked, "tools")
        return turn_grammar(self.declared(declared)[0], calls, answer)

    def finish(self, prepared: Prepared, result: GenerationResult) -> Turn:
        """Parse a result."""
        turn = ParsedTurn(result.text)
        if result.finish == "stop":
            stops = (stop for stop in prepared.request.stop if stop in result.text)
            turn = ParsedTurn(result.text[: min(map(result.text.find, stops))])
        elif result.finish == "eos" and prepared.parser is not None:
            parsed = prepared.parser.parse(result.token_ids)
            turn = replace(turn, problem=parsed.problem) if parsed.problem else parsed
            if len(turn.calls) > 1 and not prepared.asked.parallel_tool_calls:
                turn = ParsedTurn(result.text, problem="several calls in a turn that may have one")
            answer = None if prepared.asked.forced else prepared.asked.answer
            if answer is not None and not turn.calls and (parsed.bad_call or not turn.problem):
                turn = replace(turn, problem=_misfit(answer, turn.content))
        return Turn(result, _reply(turn), turn.problem)

    def declared(
        self, tools: Sequence[Mapping[str, Any]]
    ) -> tuple[ChatTemplate, TurnParser | None]:
        """The template and the parser of conversations with ``tools``.

        Raises InputError for malformed tools, and for a chat template that leaves them out.
        """
        text = json.dumps(tools)
        if len(text) > _LONGEST_TOOLS:
            raise InputError(f"tools: {len(text):,} characters; send at most {_LONGEST_TOOLS:,}")
        return self._declared(text)

    def _new(self, tools: str) -> tuple[ChatTemplate, TurnParser | None]:
        declared, names = parse_json(tools, "tools"), set[str]()
        for number, tool in enumerate(declared):
            function, at = tool["function"], f"tools.{number}.function"
            if function["name"] in names:
                raise InputError(f"{at}.name: there are two tools {function['name']}")
            names.add(function["name"])
            check_schema(function["parameters"], f"{at}.parameters")
        decoding = self.decoding
        opened = partial(
            ChatTemplate,
            self.tokenizer(),
            thinking=decoding.thinking,
            longest=decoding.max_model_len,
        )
        if declared:
            template = opened(declared)
            template.check()
            return template, TurnParser(template)
        with suppress(InputError):  # a template without tools: the text is the answer
            return opened(), TurnParser(opened([_NO_TOOL]))
        return opened(), None


def _misfit(schema: Mapping[str, Any], text: str) -> str | None:
    """Why a text is not an answer in JSON of this schema; a grammar does not hold all keywords."""
    try:
        problem = schema_problem(schema, parse_json(text, "answer"))
    except InputError:
        problem = "it is not JSON"
    return problem and f"the answer does not fit response_format: {problem}"


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
            tool_call(call.name, json.dumps(call.arguments), f"call_{secrets.token_hex(8)}")
            for call in turn.calls
        ]
    return message
