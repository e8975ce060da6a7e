"""Steps, answers and verdicts of hand-written conversations, for every method."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from pipeline.core.methods import METHODS
from pipeline.core.records import ContextItem, Step
from pipeline.rollout.conversations.messages import Message
from pipeline.rollout.conversations.steps import parse, tool_format, write
from pipeline.rollout.grammars import ParsedOutput, grammar

DOC = ContextItem("chunk", "", "Ada", "Born in London.", 0.0)
LINE = 'Doc 1(Title: "Ada") Born in London.'


def assistant(content: str, *calls: Message, **other: str) -> Message:
    return {"role": "assistant", "content": content, "tool_calls": list(calls)} | other


def call(query: str = "Where?", name: str = "search", **arguments: object) -> Message:
    text = json.dumps({"query": query} | arguments)
    return {"type": "function", "function": {"name": name, "arguments": text}}


def result(content: str = LINE, **other: str) -> Message:
    return {"role": "tool", "content": content} | other


def conversation(*turns: Message) -> list[Message]:
    return [{"role": "system", "content": "S"}, {"role": "user", "content": "Q"}, *turns]


def test_every_method_declares_a_tool() -> None:
    tools = {name: tool_format(name).tool["function"] for name in METHODS}
    required = {name: (one["name"], one["parameters"]["required"]) for name, one in tools.items()}
    assert required == {
        "tearag": ("search", ["query", "entities"]),
        "hiprag": ("search", ["query"]),
        "search-r1": ("search", ["query"]),
        "r1-searcher": ("search", ["query"]),
        "prograph": ("search_graph", ["query"]),
    }


def test_hiprag_reads_search_steps_and_step_lines() -> None:
    messages = conversation(
        assistant(
            "<think>hm</think>Step 1: I know Ada.\nAda is a person.\nStep 2: Where was she born?",
            call(),
        ),
        result(),
        assistant("In London.\nStep 3: London is in England.\nAnswer: England", thinking="hm"),
    )
    assert parse(tool_format("hiprag"), messages) == ParsedOutput(
        [
            Step(reasoning="I know Ada.", conclusion="Ada is a person."),
            Step(
                reasoning="hm\nWhere was she born?",
                search="Where?",
                context=[DOC],
                conclusion="In London.",
            ),
            Step(conclusion="London is in England."),
        ],
        answer="England",
        format_ok=True,
    )


def test_a_step_line_right_after_a_result_is_its_conclusion() -> None:
    messages = conversation(
        assistant("", call()),
        result(),
        assistant("Step 2: In London.\nStep 3: How large is it?", call("How large?")),
        result("x"),
        assistant("Answer: x"),
    )
    first, second = parse(tool_format("hiprag"), messages).steps
    assert (first.conclusion, second.reasoning) == ("In London.", "How large is it?")


TURN = (assistant("", call()), result())


@pytest.mark.parametrize(
    ("turns", "error", "answer", "steps"),
    [
        ((*TURN, assistant("It is London.")), "no 'Answer:' in the last message", "It is London.", 1),
        ((*TURN, assistant("Answer: ")), "nothing after 'Answer:'", None, 1),
        ((*TURN, assistant("Answer: x<|im_end|>y")), "control token <|im_end|> at offset 9", "x", 1),
        ((*TURN, assistant("<think>Answer: x")), "the think block is not closed", None, 0),
        ((*TURN, assistant("So.", call(name="find"))), "tool 'find' is not declared", None, 1),
        ((*TURN, assistant("So.", call(more=1)), result(), assistant("Answer: x")), None, "x", 2),
        ((*TURN, assistant("So.", call(3))), "3 is not of type 'string'", None, 1),
        ((*TURN, assistant("So.", call(" "))), "an empty argument of search", None, 1),
        ((assistant("", call(), call()), result(), assistant("Answer: x")),
         "call 2 of a turn has no result", "x", 0),
        ((assistant("Hm."), {"role": "user", "content": "So?"}, assistant("Answer: x")),
         "turn 1 has no call and is not the last", "x", 0),
        ((assistant("", {"function": {"name": "search", "arguments": "{"}}), result()),
         "the arguments of search are no object", None, 0),
        (TURN, "no answer", None, 0),
        ((), "no answer", None, 0),
    ],
)  # fmt: skip
def test_malformed_conversations_keep_the_steps_before_the_error(
    turns: tuple[Message, ...], error: str | None, answer: str | None, steps: int
) -> None:
    parsed = parse(tool_format("search-r1"), conversation(*turns))
    assert parsed.format_ok == (error is None)
    assert (error or "") in (parsed.format_error or "")
    assert (parsed.answer, len(parsed.steps)) == (answer, steps)


def test_a_sixth_step_of_tearag_is_malformed() -> None:
    turns = [assistant("So.", call(entities=["Ada"])), result("x")] * 6
    turns.append(assistant("So.\nAnswer: x"))
    parsed = parse(tool_format("tearag"), conversation(*turns))
    assert (len(parsed.steps), parsed.format_error) == (5, "no answer after 5 steps")
    assert parse(tool_format("tearag"), conversation(*turns[2:])).format_ok


def test_an_answer_without_a_step_is_malformed_for_tearag_only() -> None:
    messages = conversation(assistant("I know.\nAnswer: x"))
    parsed = parse(tool_format("tearag"), messages)
    assert (parsed.answer, parsed.format_error) == ("x", "an answer without a step")
    assert parse(tool_format("search-r1"), messages).format_ok


WRITTEN = {
    "tearag": [
        Step(entities=["Ada"], subquery="Where?", context=[DOC], summary="In London."),
        Step(entities=["London", "UK"], subquery="How large?", summary="Large."),
    ],
    "hiprag": [
        Step(reasoning="I look.", search="Where?", context=[DOC], conclusion="In London."),
        Step(reasoning="I know it.", conclusion="London is large."),
        Step(reasoning="So I look.", search="How large?", conclusion="Large."),
    ],
    "search-r1": [
        Step(think="I look.", subquery="Where?", context=[DOC], summary="In London."),
        Step(think="And now?", subquery="How large?", summary="Large."),
    ],
    "prograph": [
        Step(reasoning="I look.", query="Where?", context=[DOC], summary="In London."),
        Step(reasoning="And now?", query="How large?", summary="Large."),
    ],
}  # fmt: skip
WRITTEN["r1-searcher"] = WRITTEN["search-r1"]


@pytest.mark.parametrize("method", METHODS)
def test_written_steps_are_read_back(method: str) -> None:
    results = grammar(method).item_lines
    turns = write(tool_format(method), WRITTEN[method], "9 million", results)
    assert [message["role"] for message in turns] == ["assistant", "tool"] * 2 + ["assistant"]
    parsed = parse(tool_format(method), conversation(*turns))
    assert (parsed.answer, parsed.format_ok) == ("9 million", True)
    expected = [*WRITTEN[method]]
    if method in ("search-r1", "r1-searcher"):  # text between calls is summary and next thought
        expected[0] = replace(expected[0], summary="In London.\nAnd now?")
        expected[1] = replace(expected[1], think="In London.\nAnd now?")
    if method == "prograph":
        thoughts = ("I look.", "In London.\nAnd now?", "Large.")
        knowledge = results([DOC]).strip()
        expected = [
            Step(think=thoughts[0], query="Where?", knowledge=knowledge, context=parsed.steps[0].context),
            Step(think=thoughts[1], query="How large?"),
            Step(think=thoughts[2]),
        ]  # fmt: skip
        assert parsed.steps[0].context
    assert parsed.steps == expected
