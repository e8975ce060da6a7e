"""A grammar for turns that must call a tool, or answer in JSON, from the model's chat template.

Input: a chat template with its tools. Output: a structural tag, as xgrammar reads it and vLLM
samples by it. The template renders a call with known arguments. What it writes around them is
fixed in the grammar, and in their place stands the JSON schema of the tool. Reasoning before the
call is free up to what the template writes after it. Large counts are left out of the grammar,
because it takes seconds to minutes to compile them; the turn is compared with the schema later.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterator
from typing import Any

from pipeline.core.errors import InputError
from pipeline.core.spans import common_length
from pipeline.rollout.conversations.chat_template import QUESTION, ChatTemplate
from pipeline.rollout.conversations.messages import REASONING, Message, Tool, tool_call

# The forms of arguments, by xgrammar's names for them.
_FORMS = {
    "json": re.compile(r'\{"query": "sought"\}'),
    "qwen_xml": re.compile(r"<parameter=query>\s*sought\s*</parameter>"),
    "glm_xml": re.compile(r"<arg_key>query</arg_key>\s*<arg_value>sought</arg_value>"),
}
_COUNT = re.compile("(min|max)(Length|Items|Properties|Contains)")
_SOUGHT, _THOUGHT = {"query": "sought"}, "It is not known."
_ANSWER: Message = {"role": "assistant", "content": "So: X"}
_Format = dict[str, Any]
_LARGEST_COUNT = 1000  # of a schema's repetitions in a grammar
_LONGEST = 50_000  # characters of a schema
_MOST_OPTIONAL = 200  # properties: the size of a grammar is the square of their number
_WHITESPACE = 8  # characters in a row: a weak model would write them up to its limit


def call_message(tool: Tool) -> Message:
    """A turn that calls a tool."""
    call = tool_call(tool["function"]["name"], _SOUGHT, "call00000")
    return {"role": "assistant", "content": "", "tool_calls": [call]}


def turn_grammar(template: ChatTemplate, calls: list[Tool], answer: Any = None) -> str:
    """The grammar of a turn with one of ``calls``, or, if given, an answer of schema ``answer``.

    Raises InputError where the template writes arguments in a form that no grammar is known for.
    """
    some = {"type": "object"}
    tools = [(call_message(tool), tool["function"].get("parameters") or some) for tool in calls]
    answers = [({"role": "assistant", "content": json.dumps(_SOUGHT)}, answer)]
    turns = [*tools, *(answers if answer is not None else ())]
    if any(len(json.dumps(schema)) > _LONGEST for _, schema in turns):
        raise InputError(
            f"a JSON schema of more than {_LONGEST:,} characters is too long for a grammar; "
            "shorten it"
        )
    if sum(_optional(schema) for _, schema in turns) > _MOST_OPTIONAL**2:
        raise InputError(
            f"the JSON schema has more than {_MOST_OPTIONAL} optional properties, too many for a "
            "grammar; list them as required, with null among their types"
        )
    ways = [way for turn, schema in turns for way in _ways(template, turn, schema)]
    return json.dumps({"type": "structural_tag", "format": {"type": "or", "elements": ways}})


def _ways(template: ChatTemplate, turn: Message, schema: Any) -> Iterator[_Format]:
    """The turn as it is written without and with reasoning."""
    text = template.turn_text(turn)
    found = next(
        ((form, match) for form, pattern in _FORMS.items() if (match := pattern.search(text))), None
    )
    if found is None:
        raise InputError(
            "tool_choice: the chat template of this model writes the arguments of calls in a form "
            "that no grammar is known for; leave tool_choice at auto and response_format at text, "
            "or set model.chat_template to a template that writes them as JSON"
        )
    form, match = found
    content = {
        "type": "json_schema",
        "json_schema": _without_large_counts(schema),
        "style": form,
        "max_whitespace_cnt": _WHITESPACE,
    }
    end = text[match.end() :]
    after = _text(end.removesuffix(next(filter(end.endswith, template.ends), "")))
    yield _sequence(_text(text[: match.start()]), content, after)
    thinking = dict.fromkeys(REASONING, _THOUGHT)
    whole = template.render([QUESTION, turn | thinking], generation_prompt=False)
    begun, _, rest = template.turn_text(turn | thinking).partition(_THOUGHT)
    other = template.turn_text(_ANSWER | thinking).partition(_THOUGHT)[2]
    closing = rest[: common_length(rest, other)].rstrip()
    if closing and whole.startswith(template.generation_prompt):
        free = {"type": "any_text"}
        thought = {"type": "tag", "begin": begun.rstrip(), "content": free, "end": closing.strip()}
        before = rest[len(closing) : rest.index(match.group())]
        yield _sequence(thought, _text(before), content, after)


def _optional(schema: Any) -> int:
    """The number of optional properties, squared for each object in a schema."""
    if not isinstance(schema, dict):
        return sum(map(_optional, schema)) if isinstance(schema, list) else 0
    properties, required = schema.get("properties"), schema.get("required")
    own = len({*properties} - {*map(str, required or ())}) if isinstance(properties, dict) else 0
    return own**2 + sum(map(_optional, schema.values()))


def _without_large_counts(schema: Any) -> Any:
    if isinstance(schema, list):
        return [_without_large_counts(each) for each in schema]
    if not isinstance(schema, dict):
        return schema
    return {
        key: value if key in ("enum", "const") else _without_large_counts(value)
        for key, value in schema.items()
        if math.prod(_counts(key, value)) <= _LARGEST_COUNT
    }


def _counts(key: str, value: Any) -> list[float]:
    if key == "pattern" and isinstance(value, str):
        return [float(count) for count in re.findall(r"[{,](\d+)(?=[,}])", value)]
    return [value] if _COUNT.fullmatch(key) and isinstance(value, int) else []


def _text(value: str) -> _Format:
    return {"type": "const_string", "value": value}


def _sequence(*parts: _Format) -> _Format:
    return {"type": "sequence", "elements": [part for part in parts if part.get("value") != ""]}
