"""Messages of a conversation in the form of OpenAI's interface, checked and made uniform.

Input: messages as agents log them. Output: messages as chat templates read them: contents are text,
arguments are objects, and reasoning stands under every name that templates use. Every text that the
model did not write has its added tokens escaped, so that no document can switch the role.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from pipeline.core.errors import InputError
from pipeline.core.input_files import parse_json
from pipeline.core.records import CalledFunction, ChatMessage, ToolCall, Writer
from pipeline.grammars.sanitize import escape_tokens

Message = dict[str, Any]
Tool = Mapping[str, Any]  # ``{"type": "function", "function": {name, description, parameters}}``
ROLES = ("system", "user", "assistant", "tool")
# The names of the reasoning in messages: Qwen and GLM; vLLM's server; gpt-oss and LFM.
REASONING = ("reasoning_content", "reasoning", "thinking")


@dataclass(frozen=True)
class Call:
    """A tool call. ``arguments`` are an object if the call is valid."""

    name: str
    arguments: Any
    id: str | None = None


def uniform(messages: Sequence[Mapping[str, Any]]) -> list[Message]:
    """The messages as templates read them.

    Arguments that are JSON text become values; other text stays, because it is what the model
    wrote. Raises InputError, which names the message and the field, for another shape.
    """
    if not messages:
        raise InputError("messages: there is none")
    return [_uniform(message, f"messages.{number}") for number, message in enumerate(messages)]


def _uniform(message: Mapping[str, Any], at: str) -> Message:
    role = "system" if message.get("role") == "developer" else message.get("role")
    if role not in ROLES:
        raise InputError(f"{at}.role: {role!r} is not one of {', '.join(ROLES)}")
    clean: Message = {"role": role, "content": _text(message.get("content"), f"{at}.content")}
    if reasoning := next((message[name] for name in REASONING if message.get(name)), None):
        clean |= dict.fromkeys(REASONING, _text(reasoning, f"{at}.{REASONING[0]}"))
    if message.get("tool_calls"):
        if role != "assistant" or not isinstance(message["tool_calls"], list):
            raise InputError(f"{at}.tool_calls: expected a list, in an assistant's message")
        clean["tool_calls"] = [
            _call(call, f"{at}.tool_calls.{number}")
            for number, call in enumerate(message["tool_calls"])
        ]
    return clean | {key: str(message[key]) for key in ("name", "tool_call_id") if message.get(key)}


def _text(content: Any, at: str) -> str:
    """The text of a content, which may be a list of parts."""
    if isinstance(content, list):
        parts = (part.get("text") if isinstance(part, dict) else part for part in content)
        content = "".join(part for part in parts if isinstance(part, str))
    if content is None or isinstance(content, str):
        return content or ""
    raise InputError(f"{at}: {type(content).__name__} where text, or a list of parts, is expected")


def _call(call: Any, at: str) -> Message:
    function = call.get("function") if isinstance(call, dict) else None
    if not isinstance(function, dict) or not isinstance(function.get("name"), str):
        raise InputError(f"{at}: a call needs function.name and function.arguments")
    arguments = function.get("arguments", {})
    if isinstance(arguments, str):
        arguments = _value(arguments)
    clean: Message = {
        "type": "function",
        "function": {"name": function["name"], "arguments": arguments},
    }
    return clean | ({"id": str(call["id"])} if call.get("id") else {})


def _value(text: str) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return text


def calls_of(message: Message) -> list[Call]:
    """The calls of a uniform message."""
    return [
        Call(call["function"]["name"], call["function"]["arguments"], call.get("id"))
        for call in message.get("tool_calls", ())
    ]


def prompt_and_turns(
    messages: str | Sequence[Mapping[str, Any]],
) -> tuple[list[Message], list[Message]]:
    """The uniform messages before the first turn, and all others; JSON text is read."""
    given = parse_json(messages, "messages") if isinstance(messages, str) else messages
    if not isinstance(given, list) or not all(isinstance(one, dict) for one in given):
        raise InputError("messages: expected a list of messages")
    prompt, turns = split_turns(uniform(given))
    return prompt, [message for turn in turns for message in turn]


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


def messages_before(messages: Sequence[Message], number: int) -> list[Message]:
    """The messages before turn ``number`` of the assistant, from 0."""
    starts = [place for place, each in enumerate(messages) if each["role"] == "assistant"]
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
    if isinstance(arguments, str):  # malformed, as the model wrote it
        return arguments
    return json.dumps(arguments, ensure_ascii=False)


def with_escapes(messages: Iterable[Message], tokens: tuple[str, ...]) -> list[Message]:
    """The messages with ``tokens`` escaped in their contents."""
    return [
        message | {"content": escape_tokens(message["content"], tokens)} for message in messages
    ]


def split_turns(messages: Sequence[Message]) -> tuple[list[Message], list[list[Message]]]:
    """The prompt, and the turns: an assistant's message with the messages up to the next one.

    Raises InputError for a conversation that does not start with other messages.
    """
    starts = [number for number, message in enumerate(messages) if message["role"] == "assistant"]
    ends = [*starts[1:], len(messages)]
    if starts[:1] == [0]:
        raise InputError("messages.0: a conversation starts with a system or user message")
    turns = [list(messages[start:end]) for start, end in zip(starts, ends, strict=False)]
    return list(messages[: starts[0] if starts else None]), turns
