"""R1-Searcher's grammar: steps, format errors, the next action, and documents of both layouts."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipeline.core.records import ContextItem, Step
from pipeline.rollout.grammars import grammar
from tests.rollout.test_sampler import TOKENIZER, rolled

GRAMMAR = grammar("r1-searcher")
FIRST = 'I search for "<|begin_of_query|> physics prize<|end_of_query|>'
DOCUMENTS = (
    "\n\n<|begin_of_documents|>\n(1)Title: Nobel (prize) Text:  It began in 1901.\n"
    '(2)"Title: Prize money Text:  ""Much"" of it."\n(3)Röntgen   A physicist.\n<|end_of_documents|>\n\n'
)
OUTPUT = f"{FIRST}{DOCUMENTS}It says Röntgen.</think>\n\n<answer> Wilhelm Röntgen </answer>"
STEP = Step(
    subquery="physics prize",
    context=[
        ContextItem("chunk", "", "Nobel (prize)", "It began in 1901.", 0.0),
        ContextItem("chunk", "", "Prize money", '""Much"" of it."', 0.0),
        ContextItem("chunk", "", "Röntgen", "A physicist.", 0.0),
    ],
    summary="It says Röntgen.",
    think='I search for "',
)


def test_a_query_with_its_documents_becomes_a_step() -> None:
    for opening in ("", "<think>", " <think>\n"):
        parsed = GRAMMAR.parse(opening + OUTPUT)
        assert parsed.format_error is None
        assert (parsed.steps, parsed.answer) == ([STEP], "Wilhelm Röntgen")
    start, end = len(FIRST), len(FIRST + DOCUMENTS)
    assert GRAMMAR.spans(OUTPUT) == [
        (0, start, "model"), (start, end, "observation"), (end, len(OUTPUT), "model"),
    ]  # fmt: skip


def test_an_output_without_a_search_is_well_formed() -> None:
    parsed = GRAMMAR.parse("I know it.</think> <answer>42</answer>")
    assert (parsed.format_error, parsed.answer, parsed.steps) == (None, "42", [])


@pytest.mark.parametrize(
    ("text", "error"),
    [
        ("a <think>" + OUTPUT, "<think> after state 'thinking'"),
        (OUTPUT.replace("</think>", ""), "<answer> after state 'observed'"),
        (OUTPUT.replace("</think>", "</think> so"), "text outside the tags"),
        (FIRST + DOCUMENTS, "no answer"),
        (OUTPUT.replace(" Wilhelm Röntgen ", " "), "nothing inside the tags"),
        (OUTPUT.replace("It says", "<|begin_of_documents|> It says"), "<|begin_of_documents|> af"),
        (OUTPUT.replace("It says", "<|im_end|> It says"), "control token <|im_end|>"),
        (OUTPUT.replace("</think>", f"</think>{FIRST}"), "text outside the tags"),
        ("<answer>42</answer>", "<answer> after state 'thinking'"),
    ],
)
def test_a_format_error_is_reported(text: str, error: str) -> None:
    format_error = GRAMMAR.parse(text).format_error
    assert format_error is not None
    assert format_error.startswith(error)


HOSTILE = st.sampled_from(
    ["Text:", " Text: ", "Title: ", "(2)", "\n(2)", "   ", "<|end_of_documents|>", "</think>",
     "<answer>x</answer>", "<|im_end|>", "{item}", "a", '"', "\\"]
)  # fmt: skip


@given(st.lists(HOSTILE, max_size=4).map("".join), st.lists(HOSTILE, max_size=4).map("".join))
def test_parsing_inverts_rendering_with_hostile_documents(title: str, text: str) -> None:
    items = [ContextItem("chunk", "", title, text, 0.0), ContextItem("chunk", "", "B", "b", 0.0)]
    output, spans = GRAMMAR.render([Step(subquery="q", context=items, summary="s", think="t")], "a")
    for parsed in (GRAMMAR.parse(output), GRAMMAR.parse(output, spans)):
        assert (parsed.format_error, parsed.answer, len(parsed.steps)) == (None, "a", 1)
        [step] = parsed.steps
        assert (step.subquery, step.summary, step.think) == ("q", "s", "t")
        assert len(step.context) == 2
        assert [item.title.strip() for item in step.context] == [
            item.title.strip() for item in GRAMMAR.sanitize_items(items)
        ]


def test_a_scripted_policy_searches_and_answers() -> None:
    def script(prompt: str, request: object) -> str:
        return OUTPUT[len(FIRST + DOCUMENTS) :] if "documents" in prompt else FIRST

    made = grammar("r1-searcher", special_tokens=TOKENIZER.all_special_tokens)
    [trajectory] = rolled(script, grammar=made)
    assert (trajectory.answer, trajectory.format_error) == ("Wilhelm Röntgen", None)
    assert [step.subquery for step in trajectory.steps] == ["physics prize"]
    assert trajectory.steps[0].context[0].id == "c-physics prize"
    assert "(1)Title: T Text: on physics prize\n(2)Title:  Text: a b c\n" in trajectory.output
    assert [writer for *_, writer in trajectory.spans] == ["model", "observation", "model"]
