"""A question file is of a published data set only if it has fields that no other file has."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from pipeline.core.errors import InputError
from pipeline.core.record_io import as_json
from pipeline.core.records import Question
from pipeline.knowledge.corpus.questions.load import dataset_of, load_questions
from tests.corpus.question_files import write_questions as write
from tests.corpus.test_question_loaders import HOTPOTQA, MUSIQUE

NATIVE: dict[str, dict[str, Any]] = {
    "musique": MUSIQUE,
    "hotpotqa": HOTPOTQA,
    "2wiki": {**HOTPOTQA, "evidences": [["A", "is", "river"]]},
    "nq": {
        "question": "Who made it?",
        "answers": ["Ann"],
        "ctxs": [{"title": "It", "text": "Made by Ann.", "isgold": True}],
    },
    "popqa": {"question": "Who made it?", "possible_answers": '["Ann"]', "prop": "maker"},
    "triviaqa": {"Question": "Who?", "Answer": {"Value": "Ann", "Aliases": ["Ann"]}},
    "questions": as_json(Question("q", "musique", "Who?", ["Ann"], "multi")),
}


@pytest.mark.parametrize("dataset", NATIVE)
def test_native_records_are_told_apart_and_readable(dataset: str, tmp_path: Path) -> None:
    path = write(tmp_path, NATIVE[dataset])
    assert dataset_of(path) == dataset
    assert len(load_questions(path, dataset)) == 1


@pytest.mark.parametrize(
    "row",
    [
        {"question": "Who?", "golden_answers": ["Ann"]},
        {"question": "Who?", "answer": "Ann"},
        {"Question": "Who?", "Answer": "Ann"},  # the header of Bamboogle's table
        {" QUESTION ": "Who?", "ANSWER": ["Ann"], "level": "hard", "type": "x"},
        {"question": "Who?", "answer": ["Ann"]},  # NQ-open's fields
        {"question": "Who?", "answer": {"text": ["Ann"]}, "ctxs": [{"text": "found"}]},
        {"question": "Who?", "answer": "Ann", "evidence": "A: made by Ann"},
        {"question": "Who?", "answers": ["Ann"], "evidence": ["A: made by Ann"]},
        {"question": "Who?", "possible_answers": ["Ann"], "context": "Ann."},
        {"question": "Who?", "golden_answers": ["Ann"], "golden_context": ["A\nby Ann"]},
        {"question": "Who?", "answer": "Ann", "supporting_facts": "page 3"},
    ],
)
def test_questions_of_any_other_origin_are_of_no_published_data_set(
    row: dict[str, Any], tmp_path: Path
) -> None:
    path = write(tmp_path, row)
    assert dataset_of(path) == "questions"
    [question] = load_questions(path, "questions")
    assert (question.question, question.answers) == ("Who?", ["Ann"])
    assert (question.hop, question.hops) == ("unknown", None)


def test_rows_that_are_no_questions_are_named_with_their_columns(tmp_path: Path) -> None:
    path = write(tmp_path, {"frage": "Wer?", "antwort": "Ann"})
    expected = r"questions\.jsonl: no row has a question and an answer; expected question and answer .*; the rows have frage, antwort; rename"
    with pytest.raises(InputError, match=expected):
        dataset_of(path)
    path.write_text("{oops\n")
    with pytest.raises(InputError, match=r"questions\.jsonl:1: not valid JSON"):
        dataset_of(path)
