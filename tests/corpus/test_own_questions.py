"""Questions of any form: only a question and an answer are required."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from pipeline.config import QuestionFile
from pipeline.core.errors import InputError
from pipeline.core.records import Decomposed, Question
from pipeline.corpus.questions.load import UNANSWERED, UNKNOWN_HOPS, Notes, load_questions

TEXT = "Who founded it?"
NAME = "questions-6883ddb1b6d5"  # a hash of the text


def write(folder: Path, *records: dict[str, Any]) -> Path:
    path = folder / "questions.jsonl"
    path.write_text("".join(json.dumps(record) + "\n" for record in records))
    return path


@pytest.mark.parametrize(
    ("record", "expected"),
    [
        ({"answer": "Ann"}, Question(NAME, "questions", TEXT, ["Ann"], "unknown")),
        ({"answers": ["Ann", "Ann Lee"]}, Question(NAME, "questions", TEXT, ["Ann", "Ann Lee"], "unknown")),
        ({"answers": "Ann"}, Question(NAME, "questions", TEXT, ["Ann"], "unknown")),
        ({"golden_answers": ["Ann"], "id": 7}, Question("questions-7", "questions", TEXT, ["Ann"], "unknown")),
        (
            {"answer": ["Ann"], "id": "x", "hops": 2, "evidence": "Ann: founded it", "dataset": "mine", "more": 1},
            Question("x", "mine", TEXT, ["Ann"], "multi", ["Ann: founded it"], 2),
        ),
        ({"answer": "Ann", "hops": 1}, Question(NAME, "questions", TEXT, ["Ann"], "single", hops=1)),
        ({"answer": "Ann", "hop": "multi"}, Question(NAME, "questions", TEXT, ["Ann"], "multi")),
        (
            {"answer": "Ann", "decomposition": [{"question": "a?", "answer": "b"}] * 2},
            Question(NAME, "questions", TEXT, ["Ann"], "multi", hops=2, decomposition=[Decomposed("a?", "b")] * 2),
        ),
    ],
)  # fmt: skip
def test_a_record_says_what_it_knows(
    tmp_path: Path, record: dict[str, Any], expected: Question
) -> None:
    path = write(tmp_path, {"question": TEXT, **record})
    assert load_questions(path, "questions") == [expected]


@pytest.mark.parametrize(
    ("record", "problem"),
    [
        ({"answer": "Ann"}, ":1: question: missing"),
        (
            {"question": TEXT},
            ":1: answers or answer or golden_answers: missing; the record has question",
        ),
        ({"question": TEXT, "answer": " "}, ":1: answer: expected at least one answer"),
        ({"question": TEXT, "answer": 7}, ":1: answer: expected a non-empty string, got 7"),
        ({"question": TEXT, "answer": "Ann", "hop": "two"}, ":1: hop: "),
        (
            {"question": TEXT, "answer": "Ann", "hops": 0},
            ":1: hops: expected a number of at least 1",
        ),
        (
            {"question": TEXT, "answer": "Ann", "dataset": "all"},
            ":1: dataset: expected another name",
        ),
    ],
)
def test_a_malformed_record_is_refused_with_file_line_and_field(
    tmp_path: Path, record: dict[str, Any], problem: str
) -> None:
    path = write(tmp_path, record)
    with pytest.raises(InputError) as error:
        load_questions(path, "questions")
    assert str(error.value).startswith(f"{path}{problem}")


def test_tables_hold_questions_with_lists_and_blank_cells(tmp_path: Path) -> None:
    import pyarrow as pa
    import pyarrow.parquet as pq

    (tmp_path / "a.csv").write_text(
        'question,answers,hops\nWho?,"[""Ann"", ""Bo""]",2\nWhen?,1988,\n'
    )
    rows = {"question": ["Who?", "When?"], "answers": [["Ann", "Bo"], ["1988"]], "hops": [2, None]}
    pq.write_table(pa.table(rows), tmp_path / "a.parquet")
    for name in ("a.csv", "a.parquet"):
        notes = Notes()
        found = load_questions(tmp_path / name, "mine", notes=notes)
        assert [(one.answers, one.hop, one.hops, one.dataset) for one in found] == [
            (["Ann", "Bo"], "multi", 2, "mine"), (["1988"], "unknown", None, "mine")
        ]  # fmt: skip
        assert notes.counts[UNKNOWN_HOPS] == 1


def test_rows_without_an_answer_are_left_out_and_counted(tmp_path: Path) -> None:
    blank = [
        {"question": "Why?"},
        {"question": "How?", "answer": ""},
        {"question": "So?", "answers": []},
    ]
    path, notes = write(tmp_path, *blank, {"question": "Who?", "answer": "Ann"}), Notes()
    assert [one.question for one in load_questions(path, "mine", notes=notes)] == ["Who?"]
    assert notes.counts[UNANSWERED] == 3
    path = write(tmp_path, *blank)
    with pytest.raises(InputError, match=r":1: answers or answer or golden_answers: missing"):
        load_questions(path, "mine")
    with pytest.raises(InputError, match=r":1: .*answer"):  # published data sets have answers
        load_questions(path, "nq")


def test_the_name_of_a_data_set_is_free_but_no_misspelled_one() -> None:
    assert QuestionFile(path="q.jsonl").dataset == "questions"
    assert QuestionFile(path="q.jsonl", dataset="harbour").dataset == "harbour"
    with pytest.raises(ValueError, match="expected musique, or a name that differs more from it"):
        QuestionFile(path="q.jsonl", dataset="musiqe")
    with pytest.raises(ValueError, match="names an average"):
        QuestionFile(path="q.jsonl", dataset="2-hop")
