"""Failure modes of hand-made trajectories, their precedence, and the hops of each data set."""

from __future__ import annotations

from typing import Any

import pytest

from pipeline.core.records import ContextItem, Question, Step, Trajectory
from pipeline.evaluation.failures import Diagnosis, FailureMode, diagnose
from pipeline.evaluation.gold_hops import GoldHop, SearchableText, gold_hops
from tests.evaluation.hops import (
    BORN,
    DIRECTED,
    ELSEWHERE,
    EVIDENCE,
    film_trajectory,
    first_step,
    musique,
    second_step,
)

COMPARED = ["Ime: The Ime flows for 310 miles.", "Ost: The length of the Ost is 90 miles."]


def failure(trajectory: Trajectory, question: Question | None = None) -> tuple[str, int | None]:
    diagnosis = diagnose(trajectory, question or musique())
    return diagnosis.failure_mode.value, diagnosis.hop


def item(text: str, title: str = "") -> ContextItem:
    return ContextItem("chunk", "c", title, text, 0.1)


def river(answer: str, *steps: Step, gold: str = "Ime") -> Trajectory:
    question = "Which river is longer, the Ime or the Ost?"
    if gold in ("yes", "no"):
        question = "Do the Ime and the Ost reach the same sea?"
    return film_trajectory(answer, *steps, question=question, answers=[gold], evidence=COMPARED)


def river_step(name: str, *context: ContextItem) -> Step:
    return Step([name], f"How long is the {name}?", list(context), "It is long.")


WRONG_PERSON = (
    first_step(DIRECTED, says="Lio Drun"),
    second_step(ELSEWHERE, says="Ostar", about="Lio Drun"),
)
HIPRAG = (
    Step(reasoning="Who made it?", search="director of Silver Lantern", context=[DIRECTED]),
    Step(reasoning="Mara Venn, I think.", conclusion="Her city is unknown."),
)
# One query and one answer turn: the record has two steps, but no query for the second hop.
PROGRAPH = (
    Step(think="Who?", query="Who directed Silver Lantern?", context=[DIRECTED]),
    Step(think="It was Mara Venn."),
)


@pytest.mark.parametrize(
    ("answer", "steps", "fields", "mode", "hop"),
    [
        ("the Vell", (first_step(), second_step()), {}, "right", None),
        ("City of Vell", (), {"stop": "max_tokens", "format_ok": False}, "right", None),
        (None, (first_step(DIRECTED),), {"stop": "retrieval_error"}, "retrieval_error", None),
        (None, (first_step(DIRECTED),), {"stop": "max_steps"}, "unfinished", None),
        (None, (first_step(DIRECTED),), {"stop": "max_tokens"}, "unfinished", None),
        (None, (first_step(DIRECTED),), {"stop": "malformed"}, "malformed", None),
        ("The", (first_step(DIRECTED),), {}, "malformed", None),
        ("the harbour of Vell", (first_step(DIRECTED), second_step(BORN)), {}, "inexact", None),
        ("City", (first_step(DIRECTED), second_step(BORN)), {}, "inexact", None),
        # The answer of an earlier hop, although all hops were retrieved.
        ("Mara Venn", (first_step(DIRECTED, BORN),), {}, "stopped_early", 2),
        ("Ostar", (first_step(DIRECTED),), {}, "stopped_early", 2),
        ("Ostar", (), {}, "stopped_early", 1),
        ("Ostar", PROGRAPH, {"grammar": "prograph"}, "stopped_early", 2),
        (
            "Ostar",
            (first_step(DIRECTED), second_step(ELSEWHERE, says="Ostar", about="Ostar")),
            {},
            "not_asked",
            2,
        ),
        ("Ostar", HIPRAG, {}, "not_asked", 2),
        ("Ostar", (first_step(ELSEWHERE, says="Ostar"),), {}, "not_retrieved", 1),
        # An item contains "Vell", but no item about Mara Venn does.
        (
            "Ostar",
            (first_step(DIRECTED), second_step(ELSEWHERE, says="Ostar")),
            {},
            "not_retrieved",
            2,
        ),
        ("Ostar", (first_step(DIRECTED), second_step(BORN, says="Ostar")), {}, "misread", 2),
        ("Ostar", (first_step(DIRECTED), second_step(BORN)), {}, "misread", None),
        ("Ostar", WRONG_PERSON, {}, "misread", 1),  # so the query for hop 2 names another person
    ],
)
def test_the_first_failed_hop_determines_the_failure_mode(
    answer: str | None, steps: tuple[Step, ...], fields: dict[str, Any], mode: str, hop: int | None
) -> None:
    assert failure(film_trajectory(answer, *steps, **fields)) == (mode, hop)


def test_a_wrong_answer_without_gold_annotations_is_other() -> None:
    unknown: dict[str, Any] = {"answers": ["yes"], "evidence": []}
    both = film_trajectory("no", first_step(), second_step(), **unknown)
    assert diagnose(both) == Diagnosis(FailureMode.OTHER, None, 2)
    early = film_trajectory("no", first_step(), **unknown)
    assert diagnose(early).failure_mode is FailureMode.STOPPED_EARLY
    single = film_trajectory("Ostar", first_step(), answers=[], evidence=[], hop="single")
    assert diagnose(single).failure_mode is FailureMode.OTHER


@pytest.mark.parametrize("gold", ["Ime", "yes"])
def test_the_hops_of_a_comparison_are_checked_by_sentences(gold: str) -> None:
    """A match of "yes" or of a river that the question names is not evidence for an answer."""
    ime, ost = item("yes, 310 miles", "Ime"), item("90 miles, says the Ime board", "Ost")
    wrong = "Ost" if gold == "Ime" else "no"
    both = river(wrong, river_step("Ime", ime), river_step("Ost", ost), gold=gold)
    assert diagnose(both).failure_mode is FailureMode.MISREAD
    no_length = river_step("Ost", item("yes, the Ime", "Ost"))
    missing = river(wrong, river_step("Ime", ime), no_length, gold=gold)
    assert diagnose(missing) == Diagnosis(FailureMode.NOT_RETRIEVED, 2, 2)
    early = river(wrong, river_step("Ime", ime), gold=gold)
    assert diagnose(early).failure_mode is FailureMode.STOPPED_EARLY
    twice = river(wrong, river_step("Ime", ime), river_step("Ime", ime), gold=gold)
    assert diagnose(twice) == Diagnosis(FailureMode.NOT_ASKED, 2, 2)


def test_a_decomposition_gives_answers_subjects_and_query_names() -> None:
    assert gold_hops(film_trajectory("x"), musique()) == [
        GoldHop(("Mara Venn",), ("Silver Lantern",), ("Silver Lantern",)),
        GoldHop(("Vell", "City of Vell"), ("Mara Venn",), ("Mara Venn",)),
    ]


def test_a_supporting_title_that_no_question_names_is_not_a_query_name() -> None:
    question = musique()
    question.decomposition[0].support_title = "Cinema of Ostar"
    (hop, _) = gold_hops(film_trajectory("x"), question)
    assert (hop.subjects, hop.query_names) == (("Cinema of Ostar",), ())


def test_evidence_is_ordered_and_linked_by_titles() -> None:
    """The pieces are in reverse order; the film's piece names the title of the other one."""
    assert gold_hops(film_trajectory("x", evidence=EVIDENCE[::-1])) == [
        GoldHop(("Mara Venn",), ("Silver Lantern",), ("Silver Lantern",), (EVIDENCE[0][16:],)),
        GoldHop(("Vell", "City of Vell"), ("Mara Venn",), ("Mara Venn",), (EVIDENCE[1][11:],)),
    ]


def test_names_are_matched_on_whole_words() -> None:
    assert SearchableText("In 2010 they know Vell.").contains("vell")
    assert not SearchableText("In 2010 they know Vellmar.").contains("Vell")
    assert not SearchableText("In 2010 they know Vellmar.").contains("10")
    assert not SearchableText("In 2010 they know Vellmar.").contains("no")
    assert not SearchableText("Mara", "Venn").contains("Mara Venn")
    assert not SearchableText("the a an").contains("the")


def test_a_name_matches_with_or_without_inner_punctuation() -> None:
    assert SearchableText("the U.S. army").contains("US")
    assert SearchableText("Smith–Jones").contains("Smith-Jones")
    assert SearchableText("1000 miles").contains("1,000")
