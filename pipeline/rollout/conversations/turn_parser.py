"""Parse a sampled assistant's turn: reasoning, text and validated tool calls.

Input: sampled ids. Output: a `ParsedTurn`. transformers' ``parse_response`` reads the text by a
response template: the tokenizer's own, or the first of TRL's with which probe turns survive the
round trip through the chat template. The calls are then validated against the tools' JSON schemas,
because the parser accepts missing arguments, arguments as a string, and unknown tools. Malformed
output is data: it sets ``problem`` and raises nothing.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from pipeline.core.errors import InputError
from pipeline.core.sanitize import control_token_error, first_control_token
from pipeline.llm.tokens import control_tokens, decode, markup
from pipeline.rollout.conversations.chat_template import ChatTemplate
from pipeline.rollout.conversations.json_schemas import schema_problem
from pipeline.rollout.conversations.messages import (
    REASONING,
    Call,
    Message,
    Tool,
    calls_of,
    is_json,
    tool_call,
)

_CALL_KEYS = ("arguments", "parameters")  # Llama writes either


@dataclass(frozen=True)
class ParsedTurn:
    """``problem`` says why the turn is malformed, None for an answer or valid calls.

    ``bad_call`` says that its calls are the reason; ``invalid`` holds them if they can be parsed.
    """

    content: str = ""
    reasoning: str = ""
    calls: list[Call] = field(default_factory=list)
    problem: str | None = None
    bad_call: bool = False
    invalid: list[Call] = field(default_factory=list)


def call_problem(call: Call, tools: Sequence[Tool]) -> str | None:
    """Why a call is invalid: an unknown tool, or arguments that its JSON schema refuses."""
    declared = {tool["function"]["name"]: tool["function"] for tool in tools}
    if call.name not in declared:
        return f"tool {call.name!r} is not declared"
    if not isinstance(call.arguments, dict):
        return f"the arguments of {call.name} are no object"
    problem = schema_problem(declared[call.name].get("parameters") or {}, call.arguments)
    return None if problem is None else f"the arguments of {call.name}: {problem}"


def calls_problem(calls: Sequence[Call], tools: Sequence[Tool]) -> str | None:
    """Why the first invalid call of a turn is invalid."""
    problems = (call_problem(call, tools) for call in calls)
    return next(filter(None, problems), None)


class TurnParser:
    """Parses the turns that a model samples under a chat template with tools.

    Raises InputError when no response template reads the chat template's calls.
    """

    _schema: Mapping[str, Any]
    _ends: tuple[str, ...]

    def __init__(self, template: ChatTemplate) -> None:
        self.template = template
        probes = [_probe_call(template.tools[0]), {"role": "assistant", "content": "So: X"}]
        texts = [template.turn_text(message) for message in probes]
        self._prefix = template.generation_prompt
        self._bare_json = False
        # The model may end a turn by another token; response templates know this one or none.
        ends = [next(filter(text.endswith, template.ends), "") for text in texts]
        bodies = [text.removesuffix(end) for text, end in zip(texts, ends, strict=True)]
        for self._schema in _response_templates(template.tokenizer):
            for self._ends in (tuple(dict.fromkeys(ends)), ("",)):
                if all(map(self._survives, probes, bodies)):
                    self._bare_json = bodies[0].startswith("{")
                    return
        raise InputError(
            f"no known response template reads the calls of {template.tokenizer.name_or_path}; set "
            "response_template in its tokenizer_config.json, or model.chat_template to another"
        )

    def parse(self, ids: Sequence[int]) -> ParsedTurn:
        """The turn of sampled ``ids`` [T], which end in an end-of-turn token."""
        tokenizer = self.template.tokenizer
        if not ids or ids[-1] not in self.template.end_ids:
            return ParsedTurn(decode(tokenizer, ids), problem="the turn has no end")
        body, end = decode(tokenizer, ids[:-1]), decode(tokenizer, ids[-1:])
        turn = self._parse_text(body)
        if turn.problem is None and turn.calls and end not in self.template.source:
            return replace(turn, problem=f"{end} after a call")
        return turn if turn.problem is None else replace(turn, calls=[])

    def _parse_text(self, body: str) -> ParsedTurn:
        """The turn with the text ``body``, which is followed by the end-of-turn token."""
        before = self._prefix + body
        if before.rfind("<think>") > before.rfind("</think>"):
            return ParsedTurn(reasoning=body, problem="the think block is not closed")
        for end in self._ends:
            try:
                turn = self._read(body, end)
            except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
                return ParsedTurn(body, problem="a call that cannot be parsed", bad_call=True)
            if turn.calls:
                break
        problem = self._text_problem(turn)
        invalid = calls_problem(turn.calls, self.template.tools) if problem is None else None
        if invalid is None:
            return replace(turn, problem=problem)
        return replace(turn, problem=invalid, bad_call=True, invalid=turn.calls)

    def _read(self, body: str, end: str) -> ParsedTurn:
        if self._bare_json and (calls := _bare_calls(body)) is not None:
            return ParsedTurn(calls=calls)
        tokenizer: Any = self.template.tokenizer
        read = tokenizer.parse_response(
            body + end, self._schema, prefix=self._prefix, tools=self.template.tools
        )
        calls = [_call(call["function"]) for call in read.get("tool_calls", ())]
        reasoning = next((read[name] for name in REASONING if read.get(name)), "")
        return ParsedTurn(read.get("content", ""), reasoning, calls)

    def _text_problem(self, turn: ParsedTurn) -> str | None:
        tokenizer = self.template.tokenizer
        written = [turn.reasoning, *(json.dumps(call.arguments) for call in turn.calls)]
        for text, tokens in (
            (turn.content, tuple(markup(tokenizer).values())),
            ("\n".join(written), control_tokens(tokenizer)),
        ):
            if control := first_control_token(text, tokens):
                return control_token_error(control)
        return None if turn.calls or turn.content.strip() else "neither a call nor an answer"

    def _survives(self, message: Message, body: str) -> bool:
        """Whether parsing ``body``, the rendering of ``message``, gives the message back."""
        turn = self._parse_text(body)
        text = message["content"] if message["content"] in body else ""  # Llama's drops it
        return (turn.content or turn.reasoning, turn.calls) == (
            text,
            [replace(call, id=None) for call in calls_of(message)],
        )


def _response_templates(tokenizer: Any) -> Iterator[Mapping[str, Any]]:
    """The tokenizer's own response template, then all of TRL's."""
    if own := getattr(tokenizer, "response_template", None):
        yield own
    from trl import chat_template_utils

    for value in vars(chat_template_utils).values():
        if isinstance(value, dict) and "fields" in value:
            yield value


def _probe_call(tool: Tool) -> Message:
    properties = (tool["function"].get("parameters") or {}).get("properties", {})
    arguments = {name: _example(schema) for name, schema in properties.items()}
    call = tool_call(tool["function"]["name"], arguments, "call00000")
    return {"role": "assistant", "content": "Look.", "tool_calls": [call]}


def _example(schema: Any) -> Any:
    """A value of the first type of a schema that is not null; schemas may have none, or be true."""
    examples = {"array": ["Ada", "Rome"], "integer": 3, "number": 3, "boolean": True, "object": {}}
    types = schema.get("type") if isinstance(schema, dict) else None
    named = [types] if isinstance(types, str) else types or []
    return examples.get(next((kind for kind in named if kind != "null"), ""), "who is it?")


def _call(function: Mapping[str, Any]) -> Call:
    """Raises KeyError or TypeError for a call without a name, ValueError for one that no record can
    hold: with NaN, infinity, or half of a surrogate pair.
    """
    given = next((function[key] for key in _CALL_KEYS if key in function), None)
    if not is_json([function["name"], given]):
        raise ValueError("a value that JSON lacks")
    return Call(str(function["name"]), given)


def _bare_calls(text: str) -> list[Call] | None:
    """The calls of a text of JSON objects, as Llama writes them; None for another text.

    Raises ValueError or KeyError where such a text has no valid calls.
    """
    text = text.strip().removeprefix("<|python_tag|>")
    if not text.startswith("{"):
        return None
    calls, position = [], 0
    while position < len(text):
        value, position = json.JSONDecoder().raw_decode(text, position)
        calls.append(_call(value))
        while position < len(text) and text[position] in "; \n":
            position += 1
    return calls
