"""A hop's question becomes a fluent subquery that contains the earlier answers."""

import random

import pytest

from pipeline.training.sft_data.mentions import longest_mentions, mention
from pipeline.training.sft_data.templates import SUMMARIES, fill, fluent, summary


@pytest.mark.parametrize(
    ("question", "answers", "subquery"),
    [
        ("Who was the first president of #1 ?", ["APA"], "Who was the first president of APA?"),
        ("Who is #3 's mother?", ["a", "b", "Trajan"], "Who is Trajan's mother?"),
        ("how many publix stores are in #1", ["Ohio"], "How many publix stores are in Ohio?"),
        ("Hello Love >> performer", [], "Who is the performer of Hello Love?"),
        (
            "Midway (near Pleasant Plains), #2 , #1 >> country",
            ["Arkansas", "White County"],
            "Which country is Midway (near Pleasant Plains), White County, Arkansas in or from?",
        ),
        ("#1 >> shoe size", ["Ann"], "What is the shoe size of Ann?"),
        ("Name the mayor of #1.", ["Rome"], "Name the mayor of Rome."),
    ],
)
def test_placeholders_are_filled_and_the_text_is_cleaned_up(
    question: str, answers: list[str], subquery: str
) -> None:
    filled = fill(question, answers)
    assert filled is not None
    assert fluent(filled) == subquery


@pytest.mark.parametrize("question", ["Who is #2?", "Who is #0?"])
def test_a_placeholder_of_a_later_hop_cannot_be_filled(question: str) -> None:
    assert fill(question, ["Rome"]) is None


@pytest.mark.parametrize(
    ("text", "name", "mentioned"),
    [
        ("Founded in 2010.", "10", None),
        ("Romeo was here.", "Rome", None),
        ("He died in LONDON.", "in London", "LONDON"),
        ("Akinoshu Kenji won.", "Akinoshū  Kenji", "Akinoshu Kenji"),
        ("the US-led war", "the US", "US"),
        ("the end", "the", None),
    ],
)
def test_a_mention_consists_of_whole_words(text: str, name: str, mentioned: str | None) -> None:
    span = mention(text, name)
    assert (None if span is None else text[slice(*span)]) == mentioned


def test_only_the_longest_of_overlapping_mentions_is_kept() -> None:
    text = "Is New York City older than York?"
    assert longest_mentions(text, ["York", "New York City", "New York"]) == ["New York City"]


def test_every_summary_states_the_facts_first_and_the_answer_last() -> None:
    assert len(SUMMARIES) >= 12
    drawn = {summary(["X is in Y"], "Y", random.Random(seed)) for seed in range(400)}
    assert len(drawn) == len(SUMMARIES)
    for text in drawn:
        assert text.find("X is in Y") < text.rfind("Y")
        assert text.endswith("Y.")
    assert "The fact X is in Y logically implies the answer: Y." in drawn
