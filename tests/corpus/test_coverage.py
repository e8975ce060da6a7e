"""Gold coverage: which questions have their gold passages, or else an answer, in the corpus."""

from __future__ import annotations

import pytest

from pipeline.core.records import Decomposed, Question
from pipeline.knowledge.corpus.coverage import GoldCoverage, coverage_lines

VELL = "Vell is a harbour city in the north of Ostar, on the river Ime."


def question(number: int, answer: str = "Ostar", *evidence: str, dataset: str = "nq") -> Question:
    return Question(f"q{number}", dataset, "Where is Vell?", [answer], "unknown", list(evidence))


def uncovered(questions: list[Question], *passages: tuple[str, str]) -> list[str]:
    coverage = GoldCoverage({"test": questions})
    for title, text in passages:
        coverage.look(title, text)
    return coverage.uncovered()["test"]


@pytest.mark.parametrize(
    ("title", "text", "lacking"),
    [
        ("Vell", VELL, []),
        ("VELL", "A city of Ostar, Vell lies in the north on the Ime.", []),  # another edition
        ("Vell", "The port burned in 1802.", ["q1"]),  # another paragraph
        ("Ime", VELL, ["q1"]),  # another article
    ],
)
def test_a_gold_passage_is_there_with_its_title_and_half_of_its_words(
    title: str, text: str, lacking: list[str]
) -> None:
    assert uncovered([question(1, "Ostar", f"Vell: {VELL}")], (title, text)) == lacking


def test_a_gold_passage_that_is_cut_is_found_in_short_and_in_long_pieces() -> None:
    words = [f"w{number}" for number in range(250)]
    for size in (10, 100, 240):
        pieces = [("Long", " ".join(words[at : at + size])) for at in range(0, 250, size)]
        assert uncovered([question(1, "x", f"Long: {' '.join(words)}")], *pieces) == []
    assert uncovered([question(1, "x", f"Long: {' '.join(words)}")], ("Long", "w250 w251")) == [
        "q1"
    ]


def test_titles_may_have_colons_and_entities_of_html() -> None:
    pieces = ["Mission: Vell: The film is set in Vell.", "Ann &amp; Bo: A duo of Ostar."]
    passages = [("Mission: Vell", "The film is set in Vell."), ("Ann & Bo", "A duo of Ostar.")]
    assert uncovered([question(1, "x", *pieces)], *passages) == []
    assert uncovered([question(1, "x", *pieces)], passages[0]) == ["q1"]


def test_without_gold_passages_an_answer_is_looked_up_as_whole_words() -> None:
    questions = [
        question(1, "10"), question(2, "the Ime"), question(3, "Yes"), question(4, "Bo"),
        question(5, "Ostar", "Vell director Bo"),  # a triple names no passage
    ]  # fmt: skip
    coverage = GoldCoverage({"test": questions, "sft": []})
    coverage.look("River Ime", "It froze in 2010 near Ostar.")
    assert coverage.uncovered() == {"test": ["q1", "q4"]}
    [row] = coverage.rows()
    assert (row.n, row.by_passage, row.by_answer, row.uncovered) == (5, 0, 4, 2)
    assert list(coverage_lines([row])) == [
        "data.test: questions whose gold passages or answers the corpus lacks: 2 of 5 nq (40.0%)"
    ]


def test_every_hop_of_a_decomposition_must_be_there_and_missing_passages_are_named() -> None:
    hops = [
        Decomposed("?", "Vell", "Ann", "Ann was born in Vell."),
        Decomposed("?", "o", "Vell", VELL),
    ]
    record = Question("q1", "musique", "?", ["Ostar"], "multi", decomposition=hops)
    coverage = GoldCoverage({"sampling": [record], "test": [record]})
    coverage.look("Vell", VELL)
    assert coverage.uncovered() == {"sampling": ["q1"], "test": ["q1"]}
    assert coverage.missing_titles() == ["Ann"]
    assert coverage.find_gold("Ann", "Ann was born in Vell.")
    assert not coverage.find_gold("Ann", "Ann was born in Vell.")  # no longer missing
    assert [row.without_passage for row in coverage.rows()] == [0, 0]
