"""Messages of a conversation in the form of OpenAI's interface, checked and made uniform.

Input: messages as agents log them; `forms` reads other forms. Output: messages as chat templates
read them: contents are text, arguments are objects, and reasoning stands under every name that
templates use. A message is read whole or refused: no part, key or result of it is left out
silently. Every text that the model did not write has its added tokens escaped, so that no document
can switch the role.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import count
from typing import Any

from pipeline.core.errors import InputError
from pipeline.core.input_files import parse_json
from pipeline.core.records import CalledFunction, ChatMessage, ToolCall, Writer
from pipeline.core.sanitize import escape_tokens
from pipeline.rollout.conversations.forms import Placed, openai_form, placed

Message = dict[str, Any]
Tool = Mapping[str, Any]  # ``{"type": "function", "function": {name, description, parameters}}``
ROLES = ("system", "user", "assistant", "tool")
# The names of the reasoning in messages: Qwen and GLM; vLLM's server; gpt-oss and LFM.
REASONING = ("reasoning_content", "reasoning", "thinking")
_TEXT_PARTS = (None, "text", "input_text", "output_text")
# Keys that tell something about a message, a part or a call, and hold no text of it.
_ABOUT = frozenset({
    "id", "type", "index", "object", "status", "timestamp", "created", "created_at", "date",
    "model", "model_name", "provider", "stop_reason", "stop_sequence", "finish_reason", "usage",
    "usage_metadata", "response_metadata", "metadata", "logprobs", "weight", "loss", "score",
    "tags", "source", "sender", "annotations", "citations", "cache_control", "signature",
    "thought_signature", "encrypted_content", "artifact", "error", "extras", "extra_content",
    "provider_specific_fields", "chunk_position",
})  # fmt: skip
_READ = _ABOUT | {"role", "content", "tool_calls", "name", "tool_call_id", *REASONING}
_COPIES = ("reasoning_details", "thinking_blocks")  # of the reasoning, where there is one


@dataclass(frozen=True)
class Call:
    """A tool call. ``arguments`` are an object if the call is valid."""

    name: str
    arguments: Any
    id: str | None = None


def tool_call(name: str, arguments: Any, call_id: str) -> Message:
    """A call as messages have it."""
    function = {"name": name, "arguments": arguments}
    return {"id": call_id, "type": "function", "function": function}


def uniform(messages: Sequence[Mapping[str, Any]]) -> list[Message]:
    """The messages as templates read them.

    The text parts of a content are joined by newlines. Arguments that are JSON text become values;
    other text stays, because it is what the model wrote, and so does that of NaN (`is_json`). Calls
    of one turn that share an id get ids of their own, and so do their results, in order. Raises
    InputError, which names the message and the field, for another shape, for what would be left
    out, and for a result whose call is not certain.
    """
    return _uniform(placed(messages))


def _uniform(messages: Sequence[Placed]) -> list[Message]:
    if not messages:
        raise InputError("messages: there is none")
    clean = [(at, _clean(message, at)) for at, message in messages]
    starts = _starts(message for _, message in clean)
    for start, end in zip(starts, [*starts[1:], len(clean)], strict=False):
        _match_results(*clean[start:end])
    return [message for _, message in clean]


def _clean(message: Mapping[str, Any], at: str) -> Message:
    role = "system" if message.get("role") == "developer" else message.get("role")
    if role not in ROLES:
        raise InputError(f"{at}.role: {role!r} is not one of {', '.join(ROLES)}")
    clean: Message = {"role": role, "content": _text(message.get("content"), f"{at}.content")}
    thoughts = (_text(message.get(name), f"{at}.{name}") for name in REASONING)
    reasoning = "\n".join(filter(None, dict.fromkeys(thoughts)))
    _refuse_rest(message, _READ.union(_COPIES if reasoning else ()), at)
    if reasoning:
        clean |= dict.fromkeys(REASONING, reasoning)
    if message.get("tool_calls"):
        if role != "assistant" or not isinstance(message["tool_calls"], list):
            raise InputError(f"{at}.tool_calls: expected a list, in an assistant's message")
        clean["tool_calls"] = [
            _call(call, f"{at}.tool_calls.{number}")
            for number, call in enumerate(message["tool_calls"])
        ]
    names = {key: message.get(key) for key in ("name", "tool_call_id")}
    return clean | {key: str(name) for key, name in names.items() if name not in (None, "")}


def _text(content: Any, at: str) -> str:
    """The text of a content, which may be a list of parts."""
    if isinstance(content, list):
        parts = (_part(part, f"{at}.{number}") for number, part in enumerate(content))
        return "\n".join(filter(None, parts))
    if content is None or isinstance(content, str):
        return content or ""
    raise InputError(f"{at}: {type(content).__name__} where text, or a list of parts, is expected")


def _part(part: Any, at: str) -> str:
    if isinstance(part, str):
        return part
    if not isinstance(part, dict):
        raise InputError(f"{at}: {type(part).__name__} where a part with text is expected")
    if (kind := part.get("type")) not in _TEXT_PARTS:
        raise InputError(f"{at}: a part of type {kind}; only text is read, so write it as text")
    _refuse_rest(part, _ABOUT | {"text"}, at)
    return _text(part.get("text"), f"{at}.text")


def _refuse_rest(value: Mapping[str, Any], known: Iterable[str], at: str) -> None:
    """Raise InputError for a key that is not ``known`` and holds text."""
    for key in value.keys() - known:
        if _holds_text(value[key]):
            raise InputError(
                f"{at}.{key}: this key is not read, and it holds text; remove it, or write its "
                "text into content"
            )


def _holds_text(value: Any) -> bool:
    if isinstance(value, dict | list):
        return any(map(_holds_text, value.values() if isinstance(value, dict) else value))
    return isinstance(value, str) and bool(value.strip())


def _call(call: Any, at: str) -> Message:
    function = call.get("function") if isinstance(call, dict) else None
    if not isinstance(function, dict) or not isinstance(function.get("name"), str):
        raise InputError(f"{at}: a call needs function.name and function.arguments")
    _refuse_rest(call, _ABOUT | {"function"}, at)
    _refuse_rest(function, _ABOUT | {"name", "arguments", "parsed_arguments"}, f"{at}.function")
    arguments = function.get("arguments", {})
    if isinstance(arguments, str):
        with suppress(InputError):
            value = parse_json(arguments)
            arguments = value if is_json(value) else arguments
    clean = {"type": "function", "function": {"name": function["name"], "arguments": arguments}}
    return clean | ({} if call.get("id") in (None, "") else {"id": str(call["id"])})


def is_json(value: Any) -> bool:
    """Whether JSON in UTF-8 holds a value: not NaN, Infinity and half of a surrogate pair."""
    try:
        json.dumps(value, ensure_ascii=False, allow_nan=False).encode()
    except (ValueError, RecursionError):
        return False
    return True


def _match_results(turn: Placed, *inserted: Placed) -> None:
    """Check that each result answers a call of its turn, and number the ids that calls share."""
    at, calls = turn[0], turn[1].get("tool_calls", [])
    results = [(place, message) for place, message in inserted if message["role"] == "tool"]
    if calls and len(results) > len(calls):
        place = results[len(calls)][0]
        raise InputError(f"{place}: the result of no call, because {at} has {len(calls)}")
    named, answers = _by_id(calls, "id"), _by_id([each for _, each in results], "tool_call_id")
    for place, result in results:
        name = result.get("tool_call_id")
        if name is not None and name not in named and all("id" in call for call in calls):
            raise InputError(f"{place}.tool_call_id: {name!r} is the id of no call of {at}")
    for name, same in named.items():
        found = answers.get(name, [])
        if len(found) not in (0, len(same)):
            raise InputError(
                f"{at}.tool_calls: {len(same)} with the id {name!r}, which {len(found)} results "
                "have; give each call its own id, and its result the same"
            )
        free = (each for n in count(2) if (each := f"{name}-{n}") not in named)
        for number, call in enumerate(same[1:], start=2):
            call["id"] = next(free)
            for result in found[number - 1 : number]:
                result["tool_call_id"] = call["id"]


def _by_id(values: Sequence[Message], key: str) -> dict[str, list[Message]]:
    found: dict[str, list[Message]] = {}
    for value in values:
        if key in value:
            found.setdefault(value[key], []).append(value)
    return found


def results_of(turn: Message, inserted: Sequence[Message]) -> list[Message | None]:
    """The result of each call of a uniform turn: by its id, else by order among the others.

    None where there is none. Then it is not certain which call lacks its result.
    """
    results = [message for message in inserted if message["role"] == "tool"]
    ids = {call.id for call in calls_of(turn)} - {None}
    named = {each.get("tool_call_id"): each for each in results}
    others = (each for each in results if each.get("tool_call_id") not in ids)
    return [
        named[call.id] if call.id in ids & named.keys() else next(others, None)
        for call in calls_of(turn)
    ]


def calls_of(message: Message) -> list[Call]:
    """The calls of a uniform message."""
    return [
        Call(call["function"]["name"], call["function"]["arguments"], call.get("id"))
        for call in message.get("tool_calls", ())
    ]


def read_messages(given: str | Sequence[Mapping[str, Any]]) -> list[Message]:
    """Uniform messages of a log in any form that `forms` reads, or of its JSON text."""
    return _uniform(openai_form(parse_json(given, "messages") if isinstance(given, str) else given))


def prompt_and_turns(
    messages: str | Sequence[Mapping[str, Any]],
) -> tuple[list[Message], list[Message]]:
    """The uniform messages before the first turn, and all others.

    They are of a trajectory, as JSON text, or of a log as `read_messages` takes it.
    """
    if isinstance(messages, str):
        read = uniform(parse_json(messages, "messages"))
    else:
        read = read_messages(messages)
    prompt, turns = split_turns(read)
    return prompt, [message for turn in turns for message in turn]


def name_searches(messages: Iterable[Message], tool: str, names: Iterable[str]) -> None:
    """Make calls of other tools in uniform messages calls of the search ``tool``.

    ``names`` are ``name`` or ``name=argument``, the argument that is the query. Raises InputError
    for a call with this argument and ``query``, because one of them would be left out.
    """
    queries = dict(name.partition("=")[::2] for name in names)
    for call in (call for message in messages for call in message.get("tool_calls", ())):
        function, given = call["function"], call["function"]["arguments"]
        if (query := queries.get(function["name"])) is not None:
            if isinstance(given, dict) and query != "query" and {query, "query"} <= given.keys():
                raise InputError(
                    f"a call of {function['name']} has the arguments {query} and query; name the "
                    f"tool without ={query}, or remove one of them"
                )
            function["name"] = tool
            if isinstance(given, dict) and query in given:
                function["arguments"] = {"query": given[query]} | {
                    key: value for key, value in given.items() if key != query
                }


def without_closing(messages: Sequence[Message]) -> list[Message]:
    """Uniform messages up to the answer: what users write after it, such as thanks, is left out."""
    end = len(messages)
    while end and messages[end - 1]["role"] == "user":
        end -= 1
    last = messages[end - 1] if end else {}
    answered = last.get("role") == "assistant" and not last.get("tool_calls")
    return list(messages[:end] if answered else messages)


def by_turns(messages: Sequence[Message]) -> list[tuple[str, Writer]]:
    """Uniform messages as text for people, with writers: roles, reasoning, texts and calls."""
    pieces: list[tuple[str, Writer]] = []
    for message in messages:
        reasoning = message.get(REASONING[0])
        calls = (f"{call.name}({_json_text(call.arguments)})" for call in calls_of(message))
        parts = [f"(thinks) {reasoning}" if reasoning else "", message["content"], *calls]
        text = "\n".join(filter(None, parts))
        writer: Writer = "model" if message["role"] == "assistant" else "observation"
        pieces += [(f"{message['role']}:\n", "frame"), (f"{text}\n\n", writer)]
    return pieces


def _starts(messages: Iterable[Message]) -> list[int]:
    """Where the turns of the assistant begin."""
    return [place for place, each in enumerate(messages) if each["role"] == "assistant"]


def messages_before(messages: Sequence[Message], number: int) -> list[Message]:
    """The messages before turn ``number`` of the assistant, from 0."""
    starts = _starts(messages)
    return list(messages[: starts[number] if number < len(starts) else None])


def recorded(messages: Iterable[Message]) -> list[ChatMessage]:
    """Uniform messages as records, whose arguments are JSON text."""
    return [
        ChatMessage(
            message["role"],
            message["content"],
            message.get(REASONING[0]),
            [
                ToolCall(CalledFunction(call.name, _json_text(call.arguments)), call.id)
                for call in calls_of(message)
            ]
            or None,
            message.get("tool_call_id"),
        )
        for message in messages
    ]


def _json_text(arguments: Any) -> str:
    """JSON; malformed arguments, which are text, as the model wrote them."""
    return arguments if isinstance(arguments, str) else json.dumps(arguments, ensure_ascii=False)


def with_escapes(messages: Iterable[Message], tokens: tuple[str, ...]) -> list[Message]:
    """The messages with ``tokens`` escaped in their contents."""
    return [
        message | {"content": escape_tokens(message["content"], tokens)} for message in messages
    ]


def split_turns(messages: Sequence[Message]) -> tuple[list[Message], list[list[Message]]]:
    """The prompt, and the turns: an assistant's message with the messages up to the next one.

    Raises InputError for a conversation that does not start with other messages.
    """
    starts = _starts(messages)
    ends = [*starts[1:], len(messages)]
    if starts[:1] == [0]:
        raise InputError("messages.0: a conversation starts with a system or user message")
    turns = [list(messages[start:end]) for start, end in zip(starts, ends, strict=False)]
    return list(messages[: starts[0] if starts else None]), turns
