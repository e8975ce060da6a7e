"""Logs of agents in the forms of other interfaces, as messages in the form of OpenAI's.

Input: the messages of a log. Output: messages with ``role``, ``content``, ``tool_calls`` and
``tool_call_id``, each with its place in the log, for messages of errors. `messages` checks them.

| form | known by | becomes |
|---|---|---|
| ShareGPT | ``from``, ``value`` | ``function_call`` a call, ``observation`` its result |
| LangChain | ``type`` human, ai, tool; ``data`` or ``kwargs`` around | ``args`` are arguments |
| Responses API, Agents SDK | items with a ``type`` and no ``role`` | one message for a turn |
| Anthropic | parts tool_use, tool_result, thinking | calls, results, reasoning |
| older OpenAI | ``function_call``, the role function | a call, a result |
| Hermes, Qwen | ``<tool_call>``, ``<tool_response>`` in texts | calls, results |
| ReAct | ``Action: name[argument]``, ``Observation:`` in texts | a call, its result |

Calls in a text count only where their results follow in another message, so that no result can hold
a call.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from contextlib import suppress
from typing import Any

from pipeline.core.errors import InputError
from pipeline.core.input_files import parse_json

Message = dict[str, Any]
Placed = tuple[str, Message]
_ROLES = {
    "human": "user",
    "gpt": "assistant",
    "ai": "assistant",
    "function_call": "assistant",
    "function": "tool",
    "observation": "tool",
    "function_response": "tool",
}
# Types of parts and items: the names of the arguments or the result, and of the call's id.
_CALL_PARTS = {
    "tool_use": ("input", "id"),
    "tool_call": ("args", "id"),
    "function_call": ("arguments", "call_id"),
}
_RESULT_PARTS = {
    "tool_result": ("content", "tool_use_id"),
    "function_call_output": ("output", "call_id"),
}
_THOUGHT_PARTS = ("thinking", "reasoning")
_THOUGHTS = ("thinking", "reasoning", "text", "summary", "content")
_THOUGHT_KEYS = {*_THOUGHTS, "type", "id", "index", "status", "signature", "encrypted_content"}
_OLD = "function_call"  # the key of a call before tool_calls
_CALL_TAG, _RESULT_TAG = "<tool_call>", "<tool_response>"
_REACT = re.compile(  # linear in runs of white space, as documents may hold long ones
    r"(.*)\bAction(?: \d+)?:\s*(\w+)[ \t]*(?:\[(.*)|\n+Action Input(?: \d+)?:(.*))", re.DOTALL
)
_OBSERVATION = re.compile(r"\s*Observation(?: \d+)?:\s*")


def placed(messages: Any) -> list[Placed]:
    """The messages with their places. Raises InputError unless they are a list of objects."""
    if not isinstance(messages, list | tuple) or not all(
        isinstance(message, Mapping) for message in messages
    ):
        raise InputError("messages: expected a list of messages")
    return [(f"messages.{number}", dict(message)) for number, message in enumerate(messages)]


def openai_form(log: Any) -> list[Placed]:
    """The messages of a log. Null is the same as absent, because Arrow fills rows with nulls.

    Raises InputError, which names the place, for a message in another form.
    """
    messages: list[Placed] = []
    for at, item in placed(_without_nulls(log)):
        try:
            messages += [(at, message) for message in _parts(_item(item, at))]
        except (AttributeError, KeyError, TypeError) as error:
            raise InputError(f"{at}: a field has another type than expected: {error}") from None
    if not all("role" in item for item in log):
        messages = _joined(messages)
    return list(_with_written_calls(messages))


def _without_nulls(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _without_nulls(each) for key, each in value.items() if each is not None}
    return [_without_nulls(each) for each in value] if isinstance(value, list | tuple) else value


def _item(item: Message, at: str) -> Message:
    """A message or an item with ``role`` and ``content``, which may hold parts of any form."""
    if "parts" in item:
        form = "the form of Gemini or Pydantic AI"
        raise InputError(f"{at}.parts: {form}, which is not read; write messages as OpenAI's")
    kind = item.get("type")
    if {"from", "value"} <= item.keys() and item.keys().isdisjoint(("role", "content")):
        names = {"from": "role", "value": "content"}
        item = {names.get(key, key): value for key, value in item.items()}
        if item["role"] == "function_call" and (calls := _calls([item["content"]])):
            item |= {"content": "", "tool_calls": calls}
    elif "role" not in item and (name := _langchain_kind(item)):
        item = _langchain(item) | {"role": name}
    elif "role" not in item and "type" in item:
        item = {"role": "user" if kind in _RESULT_PARTS else "assistant", "content": [item]}
    elif "role" not in item:
        raise InputError(
            f"{at}: a message with the keys {', '.join(map(str, item)) or '(none)'} is not read; "
            "messages have role and content, from and value, or type"
        )
    if not item.get("tool_calls") and (call := item.pop(_OLD, None)):
        item["tool_calls"] = [{"function": call}]
    return item | {"role": _ROLES.get(item["role"], item["role"])}


def _langchain_kind(item: Message) -> str | None:
    """The role of a message of LangChain, None for another."""
    path = item.get("id")
    name = path[-1] if isinstance(path, list) and path else item.get("type")
    kind = re.sub(r"message(chunk)?$", "", str(name).lower())
    return kind if kind in ("human", "ai", "system", "tool", "function") else None


def _langchain(item: Message) -> Message:
    """A message of LangChain without its wrapper, and without the copies that it keeps.

    What differs from its copy stays, and `messages` refuses it.
    """
    inner = item if "content" in item else item.get("kwargs") or item.get("data") or item
    message = {key: each for key, each in item.items() if each is not inner} | inner
    more, thought = {**inner.get("additional_kwargs", {})}, "reasoning_content"
    given = [*message.pop("tool_calls", []), *message.pop("invalid_tool_calls", [])]
    calls = [_named_call(call, "args") for call in given]
    for holder, name in ((more, _OLD), (more, "tool_calls"), (message, "tool_call_chunks")):
        copies, unmatched = _listed(holder.get(name)), [*calls]
        made = (
            {"function": each} if name == _OLD else _named_call(each, "args") for each in copies
        )
        if all(_is_copy(each, unmatched) for each in made):
            holder.pop(name, None)
    if calls:
        message["tool_calls"] = calls
    else:
        message |= {name: more.pop(name) for name in (_OLD, "tool_calls") if name in more}
    if (message.get(thought) or more.get(thought)) == more.get(thought):
        message[thought] = more.pop(thought, "")
    return message | {"additional_kwargs": more}


def _is_copy(copy: Message, calls: list[Message]) -> bool:
    """Whether a call in OpenAI's form is in ``calls``, from which it is then removed.

    In streams a copy has empty arguments or ``partial_json``. Its other keys are added to the call.
    """
    own = copy["function"]
    for call in (call for call in calls if isinstance(call, dict)):
        function, known = call.get("function", {}), copy.get("id") in (None, call.get("id"))
        given, same = _value(own.get("arguments")), own.get("name") == function.get("name")
        if known and same and (not given or given == _value(function.get("arguments"))):
            calls[:] = [other for other in calls if other is not call]
            call.update({key: copy[key] for key in copy.keys() - call.keys() - {"partial_json"}})
            return True
    return False


def _value(arguments: Any) -> Any:
    with suppress(TypeError, ValueError, RecursionError):
        return json.loads(arguments, strict=False)
    return arguments


def _named_call(call: Any, arguments: str, name: str = "id") -> Any:
    """A call with its name and ``arguments`` beside each other, in OpenAI's form."""
    if not isinstance(call, dict) or "function" in call:
        return call
    rest = {key: each for key, each in call.items() if key not in ("name", arguments, name)}
    made = {"name": call.get("name"), "arguments": call.get(arguments, {})}
    return rest | {"id": call.get(name), "type": "function", "function": made}


def _calls(texts: list[Any]) -> list[Message]:
    """The calls in JSON texts of objects or lists; none if one of them has no name."""
    try:
        values = [parse_json(text) for text in texts]
    except (TypeError, ValueError):
        return []
    calls = [call for value in values for call in (value if isinstance(value, list) else [value])]
    if not all(isinstance(call, dict) and isinstance(call.get("name"), str) for call in calls):
        return []
    return [
        _named_call(call, "arguments" if "arguments" in call else "parameters") for call in calls
    ]


def _parts(message: Message) -> Iterator[Message]:
    """A message without parts of other forms: the results first, as messages of their own."""
    content = message.get("content")
    parts = content if isinstance(content, list) else []
    calls, kept, results = [*_listed(message.get("tool_calls"))], [], 0
    unmatched = [*calls]  # LangChain lists calls twice
    thoughts = _listed(message.get("reasoning"))
    for part in parts:
        kind = part.get("type") if isinstance(part, dict) else None
        text, name = _RESULT_PARTS.get(str(kind), ("", ""))
        rest = part.keys() - {text, name} if text else set()
        if text and rest.isdisjoint(("role", "content", "tool_call_id")):
            answer = {"role": "tool", "content": part.get(text), "tool_call_id": part.get(name)}
            yield {**message, **{key: part[key] for key in rest}, **answer}
            results += 1
        elif kind in _CALL_PARTS:
            arguments, name = _CALL_PARTS[kind]
            if not _is_copy(call := _named_call(part, arguments, name), unmatched):
                calls.append(call)
        elif kind in _THOUGHT_PARTS and part.keys() <= _THOUGHT_KEYS:
            for text in (text for key in _THOUGHTS for text in _listed(part.get(key))):
                thoughts.append({**text, "type": "text"} if isinstance(text, dict) else text)
        else:
            kept.append(part)
    if kept or calls or thoughts or not results:
        more = {"tool_calls": calls, "reasoning": thoughts}
        content = {"content": kept} if parts else {}
        yield message | content | {name: value for name, value in more.items() if value}


def _joined(messages: list[Placed]) -> list[Placed]:
    """One message of the assistant for items that follow each other: reasoning, text and calls."""
    joined: list[Placed] = []
    for at, message in messages:
        before = joined[-1][1] if joined else {}
        if message["role"] != "assistant" or before.get("role") != "assistant":
            joined.append((at, message))
            continue
        keys = (before.keys() | message.keys()) - {"role", "name", "tool_call_id"}
        both = {key: [*_listed(before.get(key)), *_listed(message.get(key))] for key in keys}
        joined[-1] = (joined[-1][0], {**before, **message, **both})
    return joined


def _listed(value: Any) -> list[Any]:
    return value if isinstance(value, list) else [value] if value else []


def _with_written_calls(messages: list[Placed]) -> Iterator[Placed]:
    """The messages, with calls that the assistant wrote into its text, and their results."""
    waiting = 0
    for (at, message), (_, after) in zip(messages, [*messages[1:], ("", {})], strict=False):
        content = _content(message)
        if message["role"] == "assistant":
            text, calls, answer = _written(content)
            called = _listed(message.get("tool_calls"))
            if answer and not called:
                message = message | {"content": f"{text}\nAnswer: {answer}"}
            elif calls and not called and _results(after, len(calls)):
                message = message | {"content": text, "tool_calls": (called := calls)}
            waiting = len(called)
            yield at, message
        elif waiting and (texts := _results(message, waiting)):
            yield from ((at, message | {"role": "tool", "content": text}) for text in texts)
        else:
            yield at, message


def _results(message: Message, calls: int) -> list[Any]:
    """The results in a message after so many calls: a tool's content, or a user's with labels."""
    role, content = message.get("role"), _content(message).strip()
    closing = _RESULT_TAG.replace("<", "</")
    if role in ("tool", "user") and content.startswith(_RESULT_TAG) and content.endswith(closing):
        inner = content.removeprefix(_RESULT_TAG).removesuffix(closing)
        texts = re.split(rf"{closing}\s*{_RESULT_TAG}", inner)
        return [text.strip() for text in (texts if len(texts) == calls else [inner])]
    if role == "user" and (label := _OBSERVATION.match(content)):
        return [content[label.end() :]]
    return [message.get("content")] if role == "tool" else []


def _content(message: Message) -> str:
    content = message.get("content")
    return content if isinstance(content, str) else ""


def _written(content: str) -> tuple[str, list[Message], str]:
    """The text before calls that Hermes' tags or ReAct's actions write, the calls, the answer."""
    thought, closed, text = content.rpartition("</think>")
    before, *parts = text.split(_CALL_TAG)
    bodies = [part.partition("</tool_call>") for part in parts]
    if calls := _calls([body for body, _, _ in bodies]):
        rest = "".join(text for _, _, text in bodies)
        return f"{thought}{closed}{before}{rest}".strip(), calls, ""
    if (action := _REACT.fullmatch(content.strip())) is None:
        return content, [], ""
    argument = (action[4] or (action[3] or "").removesuffix("]")).strip()
    if action[2].lower() == "finish":
        return action[1].strip(), [], argument
    function = {"name": action[2].lower(), "arguments": {"query": argument}}
    return action[1].strip(), [{"type": "function", "function": function}], ""
