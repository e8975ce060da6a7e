"""The data set of a question file is told from its first record, or left to the user."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from pipeline.core.errors import InputError
from pipeline.core.record_io import as_json
from pipeline.core.records import Question
from pipeline.corpus.questions.load import dataset_of, load_questions
from tests.corpus.test_question_loaders import HOTPOTQA, MUSIQUE

NATIVE: dict[str, dict[str, Any]] = {
    "musique": MUSIQUE,
    "hotpotqa": HOTPOTQA,
    "2wiki": {**HOTPOTQA, "evidences": [["A", "is", "river"]]},
    "nq": {"question": "Who made it?", "answer": ["Ann"]},
    "popqa": {"question": "Who made it?", "possible_answers": '["Ann"]', "prop": "maker"},
    "triviaqa": {"Question": "Who?", "Answer": {"Value": "Ann", "Aliases": ["Ann"]}},
    "questions": as_json(Question("q", "musique", "Who?", ["Ann"], "multi")),
}


def write(folder: Path, *records: dict[str, Any]) -> Path:
    path = folder / "questions.jsonl"
    path.write_text("".join(json.dumps(record) + "\n" for record in records))
    return path


@pytest.mark.parametrize("dataset", NATIVE)
def test_native_records_are_told_apart_and_readable(dataset: str, tmp_path: Path) -> None:
    path = write(tmp_path, NATIVE[dataset])
    assert dataset_of(path) == dataset
    assert len(load_questions(path, dataset)) == 1


def test_a_table_with_questions_and_answers_is_bamboogle(tmp_path: Path) -> None:
    path = tmp_path / "test.csv"
    path.write_text("Question,Answer\nWho made it?,Ann\n")
    assert dataset_of(path) == "bamboogle"


@pytest.mark.parametrize(
    "answers",
    [
        {"golden_answers": ["Ann"]},
        {"answer": "Ann"},
        {"answer": "Ann", "evidence": "A: made by Ann"},
        {"answers": ["Ann"], "evidence": ["A: made by Ann"]},
    ],
)
def test_plain_questions_are_of_no_published_data_set(
    answers: dict[str, Any], tmp_path: Path
) -> None:
    assert dataset_of(write(tmp_path, {"question": "Who?", **answers})) == "questions"


@pytest.mark.parametrize(
    "record",
    [
        {"question": "Who?", "golden_answers": ["Ann"], "golden_context": []},
        {name: value for name, value in HOTPOTQA.items() if name != "level"},
        {"text": "Who?"},
    ],
)
def test_records_of_several_data_sets_are_left_to_the_user(
    record: dict[str, Any], tmp_path: Path
) -> None:
    with pytest.raises(InputError, match=r"cannot be told.*--dataset, one of musique, hotpotqa"):
        dataset_of(write(tmp_path, record))
