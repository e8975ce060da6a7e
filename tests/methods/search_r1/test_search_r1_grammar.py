"""Search-R1's grammar: steps, format errors and the next action."""

from __future__ import annotations

import pytest

from pipeline.core.records import ContextItem, Step
from pipeline.rollout.grammars import grammar

GRAMMAR = grammar("search-r1")
FIRST = "<think>who?</think>\n<search> first physics prize </search>"
INFORMATION = (
    '\n\n<information>Doc 1(Title: "Nobel (prize)") It began in 1901.\nGoes on here.\n'
    'Doc 2(Title: "Röntgen") A physicist.</information>\n\n'
)
OUTPUT = FIRST + INFORMATION + "<think>Röntgen.</think>\n<answer> Wilhelm Röntgen </answer>"
STEP = Step(
    subquery="first physics prize",
    context=[
        ContextItem("chunk", "", "Nobel (prize)", "It began in 1901.\nGoes on here.", 0.0),
        ContextItem("chunk", "", "Röntgen", "A physicist.", 0.0),
    ],
    summary="Röntgen.",
    think="who?",
)


def test_a_search_with_its_information_becomes_a_step() -> None:
    parsed = GRAMMAR.parse(OUTPUT)
    assert parsed.format_ok
    assert (parsed.steps, parsed.answer) == ([STEP], "Wilhelm Röntgen")
    start, end = len(FIRST), len(FIRST + INFORMATION)
    assert GRAMMAR.spans(OUTPUT) == [
        (0, start, "model"), (start, end, "observation"), (end, len(OUTPUT), "model"),
    ]  # fmt: skip


def test_reasoning_after_information_may_be_untagged() -> None:
    parsed = GRAMMAR.parse(OUTPUT.replace("<think>Röntgen.</think>", "It says Röntgen."))
    assert parsed.format_ok
    assert parsed.steps[0].summary == "It says Röntgen."


@pytest.mark.parametrize(
    ("text", "error"),
    [
        (OUTPUT.replace("<think>Röntgen.", "Röntgen."), "</think> after state 'observed'"),
        (OUTPUT + " done", "text outside the tags"),
        (FIRST + INFORMATION, "no answer"),
        (FIRST.replace("</think>\n", "</think> so "), "text outside the tags"),
        (OUTPUT.replace(" Wilhelm Röntgen ", " "), "nothing inside the tags"),
        (OUTPUT.replace("<search> first", "<search>a<search> first"), "<search> after state"),
        ("<answer>42</answer>", "<answer> after state 'start'"),
    ],
)
def test_a_format_error_is_reported(text: str, error: str) -> None:
    format_error = GRAMMAR.parse(text).format_error
    assert format_error is not None
    assert format_error.startswith(error)
