"""Steps, answer and format verdict of a conversation with tool calls, for every method.

Input: messages. Output: the `ParsedOutput` that the grammars of tags return, so rewards, judges,
pairs and metrics read either format. `write` is the inverse, for supervised steps. A step is one
call with its result. The text after the result is its summary or conclusion; reasoning and text
before the call are its reasoning. The answer is the text after ``Answer:`` in the last message, or
the whole message, which then is malformed.

HiPRAG's non-search steps (arXiv 2510.07794, 3.1) are passages ``Step n: ...`` that no call follows;
the last line of a passage is its conclusion.
"""

from __future__ import annotations

import json
import re
import runpy
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from importlib import import_module
from typing import Any

from pipeline.core.errors import ConfigError
from pipeline.core.methods import METHODS
from pipeline.core.records import ContextItem, Step
from pipeline.core.sanitize import control_token_error, first_control_token
from pipeline.rollout.conversations.messages import (
    REASONING,
    Call,
    Message,
    Tool,
    calls_of,
    results_of,
    split_turns,
    tool_call,
    uniform,
    without_closing,
)
from pipeline.rollout.conversations.turn_parser import call_problem, calls_problem
from pipeline.rollout.grammars.base import MAX_STEPS, ParsedOutput

ANSWER = "Answer:"
_STEP = re.compile(r"^[ \t]*Step[ \t]+[0-9]+:[ \t]*", re.MULTILINE)


@dataclass
class Exchange:
    """A call with its result, the text before the call and the text after the result."""

    query: str
    entities: list[str]
    result: str
    before: str
    after: str = ""


@dataclass(frozen=True)
class OwnTool:
    """A user's tool: its JSON schema, and the function whose result is the observation."""

    schema: Tool
    function: Callable[..., object]


OWN_TOOLS: dict[str, OwnTool] = {}  # of all methods, which `load_tools` adds


@dataclass(frozen=True)
class ToolFormat:
    """A method's tool, and the step that a call to it makes; ``query`` is the step's field.

    In a ``bounded`` format, no step and more steps than the budget are malformed. ``step_lines``
    reads ``Step n:`` passages, and ``answer_step`` adds a step for the text before the answer.
    The functions of `OWN_TOOLS` answer calls that make no step.
    """

    tool: Tool
    query: str
    step: Callable[[Exchange], Step]
    bounded: bool = False
    step_lines: bool = False
    answer_step: bool = False

    @property
    def tools(self) -> list[Tool]:
        """All declared tools, the search first."""
        return [self.tool, *(own.schema for own in OWN_TOOLS.values())]

    @property
    def name(self) -> str:
        """The name of the search."""
        return str(self.tool["function"]["name"])

    @property
    def declared(self) -> str:
        """The JSON text of `tools`."""
        return json.dumps(self.tools, ensure_ascii=False)

    def problem(self, calls: Sequence[Call]) -> str | None:
        """Why one of the calls of a turn is invalid."""
        for call in calls:
            if problem := call_problem(call, self.tools):
                return problem
            if call.name in OWN_TOOLS:
                continue
            query, entities = search_arguments(call)
            if not isinstance(entities, list) or not all(isinstance(x, str) for x in entities):
                return f"the arguments of {call.name}: entities is no list of texts"
            if not all(map(str.strip, (query, *entities))):
                return f"an empty argument of {call.name}"
        return None

    def searches(self, message: Message) -> list[Call]:
        """The calls of the search tool in an assistant's message; none if a call is invalid."""
        calls = calls_of(message)
        return [] if self.problem(calls) else [one for one in calls if one.name not in OWN_TOOLS]

    def malformed(self, message: Message) -> bool:
        """Whether a turn before the last has no valid call."""
        calls = calls_of(message)
        return not calls or self.problem(calls) is not None

    def others(self, message: Message) -> int:
        """The calls of own tools in a turn before the last, or 1 for a malformed call."""
        own = sum(call.name in OWN_TOOLS for call in calls_of(message))
        return 1 if self.malformed(message) else own


def search_arguments(call: Call) -> tuple[str, Any]:
    """The query and the entities of a search that fits its schema; null is the same as absent."""
    entities = call.arguments.get("entities")
    return call.arguments["query"], [] if entities is None else entities


def search_tool(name: str, description: str, **properties: Mapping[str, Any]) -> Tool:
    """The JSON schema of a search with a query and further ``properties``, all required."""
    query = {"type": "string", "minLength": 1, "description": "what to look for"}
    parameters = {
        "type": "object",
        "properties": {"query": query, **properties},
        "required": ["query", *properties],
    }
    function = {"name": name, "description": description, "parameters": parameters}
    return {"type": "function", "function": function}


# By method. Each is loaded at its first use, or set by a user's file.
FORMATS: dict[str, ToolFormat] = {}


def tool_format(method: str) -> ToolFormat:
    """The tool format of a method."""
    if method not in FORMATS:
        FORMATS[method] = import_module(f"{METHODS[method].package}.grammar").TOOLS
    return FORMATS[method]


def add_tool(function: Callable[..., object]) -> None:
    """Declare a tool beside the search of every method.

    Its schema follows from the function's name, type hints, and docstring with ``Args:``.
    """
    from transformers.utils import get_json_schema

    OWN_TOOLS[function.__name__] = OwnTool(get_json_schema(function), function)


def load_tools(file: str | None) -> None:
    """Run a user's Python file, which adds tools or replaces formats, once per process.

    Raises ConfigError when it is missing or fails.
    """
    if file is None or file in _LOADED:
        return
    try:
        runpy.run_path(file)
    except Exception as error:
        raise ConfigError(f"tools is {file}, which fails: {error}; correct the file") from error
    _LOADED.add(file)


_LOADED = set[str]()


class _FormatError(Exception):
    """The first format error; caught inside this module."""


@dataclass
class _Reader:
    """Reads turns in order; ``waiting`` are exchanges whose text after the result comes next.

    ``tools`` are of an agent with its own loop, which has its own budget. With ``whole`` an answer
    needs no ``Answer:``.
    """

    format: ToolFormat
    max_steps: int
    answered: bool = False  # whether the results of malformed calls are their errors
    tools: Sequence[Tool] | None = None
    whole: bool = False
    steps: list[Step] = field(default_factory=list)
    waiting: list[Exchange] = field(default_factory=list)

    def turn(self, message: Message, inserted: Sequence[Message]) -> None:
        """Read a turn that calls tools."""
        thought, text = thought_and_text(message)
        before = self._text(text, thought, calls=True)
        calls = calls_of(message)
        if self.tools is None:
            problem, searches = self.format.problem(calls), self.format.searches(message)
        else:
            problem, searches = calls_problem(calls, self.tools), calls
        if problem and not self.answered:
            raise _FormatError(problem)
        results = results_of(message, inserted)
        for number, (call, result) in enumerate(zip(calls, results, strict=True), start=1):
            searching = call in searches
            full = len(self.steps) + len(self.waiting) >= self.max_steps
            if searching and self._bounded and full:
                raise _FormatError(f"no answer after {self.max_steps} steps")
            if result is None:
                raise _FormatError(f"call {number} of a turn has no result: {call.name}")
            if searching:
                text = result["content"].strip()
                query, names = _query(call.arguments).strip(), list[str]()
                if self.tools is None:
                    names = [name.strip() for name in search_arguments(call)[1]]
                self.waiting.append(Exchange(query, names, text, before))

    def answer(self, message: Message) -> str:
        """Read the last turn; returns its text from the answer on."""
        thought, text = thought_and_text(message)
        before, marker, answer = text.rpartition(ANSWER)
        before = self._text(before, thought, calls=False)
        if self._bounded and not self.steps:
            raise _FormatError("an answer without a step")
        if self.format.answer_step:
            self.steps.append(Step(think=before))
        if control := first_control_token(text):
            raise _FormatError(control_token_error(control))
        if not marker and not self.whole:
            raise _FormatError(f"no {ANSWER!r} in the last message")
        if not answer.strip():
            raise _FormatError(f"nothing after {ANSWER!r}")
        return answer

    @property
    def _bounded(self) -> bool:
        return self.format.bounded and self.tools is None

    def _text(self, text: str, thought: str, *, calls: bool) -> str:
        """Finish the waiting exchanges with ``text``; returns the text before the next call."""
        if control := first_control_token(text):
            raise _FormatError(control_token_error(control))
        head, *passages = _STEP.split(text) if self.format.step_lines else [text]
        if self.waiting and passages and not head.strip():
            head = passages.pop(0)
        before = passages.pop() if calls and passages else head
        for exchange in self.waiting:
            exchange.after = head.strip()
            step = self.format.step(exchange)
            if self.tools is not None and exchange.result and not step.context:
                step.context = [ContextItem("chunk", "", "", exchange.result, 0.0)]
            self.steps.append(step)
        self.waiting = []
        for passage in filter(None, map(str.strip, passages)):
            reasoning, _, conclusion = passage.rpartition("\n")
            self.steps.append(Step(reasoning=reasoning.strip(), conclusion=conclusion.strip()))
        return "\n".join(filter(None, (thought.strip(), before.strip())))


def _query(arguments: Mapping[str, Any]) -> str:
    """The query of a call; of another tool, its first text, else all its arguments."""
    texts = (value for value in arguments.values() if isinstance(value, str))
    query = arguments.get("query")
    return query if isinstance(query, str) else next(texts, json.dumps(arguments))


def thought_and_text(message: Message) -> tuple[str, str]:
    """The reasoning of an assistant's message, also from a think block inside, and its text."""
    text, thought = message["content"], message.get(REASONING[0], "")
    if text.rfind("<think>") > text.rfind("</think>"):
        raise _FormatError("the think block is not closed")
    inside, closed, rest = text.rpartition("</think>")
    return f"{thought}\n{inside.replace('<think>', '')}".strip() if closed else thought, rest


def parse(
    form: ToolFormat,
    messages: Sequence[Mapping[str, Any]],
    max_steps: int = MAX_STEPS,
    *,
    answered: bool = False,
    tools: Sequence[Tool] | None = None,
    whole: bool = False,
) -> ParsedOutput:
    """The steps before the first format error, the answer, and the verdict.

    With ``answered``, malformed calls were answered by their errors, and the format may hold.
    ``tools`` are of an agent that runs its own loop: any of them may be called. There, and with
    ``whole``, the whole last message is the answer if it has no ``Answer:``. What users write
    after it is ignored. Raises InputError for messages that have not the form of OpenAI's
    interface.
    """
    _, turns = split_turns(without_closing(uniform(messages)))
    whole = whole or tools is not None
    reader, parsed = _Reader(form, max_steps, answered, tools, whole), ParsedOutput()
    try:
        for number, (message, *inserted) in enumerate(turns):
            refused = answered and [each["role"] for each in inserted] == ["tool"]
            if message.get("tool_calls") or refused:
                reader.turn(message, inserted)
            elif number + 1 < len(turns) or inserted:
                raise _FormatError(f"turn {number + 1} has no call and is not the last")
            else:
                parsed.answer = reader.answer(message).strip()
                parsed.format_ok = True
        if not parsed.format_ok:
            raise _FormatError("no answer")
    except _FormatError as error:
        parsed.format_error = str(error)
        parsed.answer = next(_stray_answer(turns), None)
    parsed.steps = reader.steps
    return parsed


def write(
    form: ToolFormat,
    steps: Sequence[Step],
    answer: str,
    results: Callable[[Sequence[ContextItem]], str],
) -> list[Message]:
    """The turns of a conversation with these steps: the inverse of `parse`.

    The text before a call is the step's reasoning, and its summary or conclusion opens the next
    turn. ``results`` writes retrieved items.
    """
    turns, texts = list[Message](), list[str]()
    for number, step in enumerate(steps, start=1):
        before = step.think or step.reasoning
        texts.append(f"Step {number}: {before}" if form.step_lines else before)
        if query := getattr(step, form.query):
            values = {"query": query, "entities": step.entities}
            names = form.tool["function"]["parameters"]["properties"]
            arguments = {name: values[name] for name in names}
            name = f"call{number:05d}"  # some templates want nine letters or digits
            calls = [tool_call(form.name, arguments, name)]
            turns += [
                {"role": "assistant", "content": _lines(texts), "tool_calls": calls},
                {"role": "tool", "content": results(step.context).strip(), "tool_call_id": name},
            ]
            texts = []
        texts.append(step.summary or step.conclusion)
    return [*turns, {"role": "assistant", "content": _lines([*texts, f"{ANSWER} {answer}"])}]


def _lines(texts: Sequence[str]) -> str:
    return "\n".join(filter(None, texts))


def _stray_answer(turns: Sequence[Sequence[Message]]) -> Iterator[str]:
    """The answer of a malformed conversation: its last message, from ``Answer:`` on."""
    message = turns[-1][-1] if turns else {}
    if message.get("role") != "assistant" or message.get("tool_calls"):
        return
    try:
        _, text = thought_and_text(message)
    except _FormatError:
        return
    if control := first_control_token(text):
        text = text[: control.start()]
    if answer := text.rpartition(ANSWER)[2].strip():
        yield answer
