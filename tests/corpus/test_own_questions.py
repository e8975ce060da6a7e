"""Questions of any form: only a question and an answer are required."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import pytest

from pipeline.config import QuestionFile
from pipeline.core.errors import InputError
from pipeline.core.records import Decomposed, Question, Trajectory
from pipeline.knowledge.corpus.bounded import bounded
from pipeline.knowledge.corpus.questions.answers import answer_texts
from pipeline.knowledge.corpus.questions.load import (
    MALFORMED,
    NO_ANSWER_IN_TEXT,
    UNANSWERED,
    UNKNOWN_HOPS,
    Notes,
    dataset_of,
    load_questions,
)
from pipeline.knowledge.corpus.questions.republished import prompted_question
from pipeline.knowledge.corpus.raw_records import RawRecord
from pipeline.rollout.importers import iterate_outputs
from tests.corpus.question_files import write_questions as write

TEXT = "Who founded it?"
NAME = "questions-6883ddb1b6d5"  # a hash of the text


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
        ({"answer": "Ann"}, ":1: question or query or problem: expected a text; the record has"),
        ({"question": TEXT}, ": no row has a question and an answer; expected question and answer"),
        ({"question": TEXT, "answer": " "}, ": no row has a question and an answer; expected"),
        ({"question": TEXT, "answer": "['Ann', Bo]"}, ":1: answer: expected a text or a list, got"),
        ({"question": TEXT, "answer": {"a": 1}}, ":1: answer: expected a text or a list, got"),
        ({"question": TEXT, "answer": "Ann", "evidence": [3]}, ":1: evidence.0: expected"),
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
    import pandas as pd
    import pyarrow as pa
    import pyarrow.parquet as pq

    (tmp_path / "a.csv").write_text(
        'question,answers,hops\nWho?,"[""Ann"", ""Bo""]",2\nWhen?,1988,\n'
    )
    rows = {"question": ["Who?", "When?"], "answers": [["Ann", "Bo"], ["1988"]], "hops": [2, None]}
    pq.write_table(pa.table(rows), tmp_path / "a.parquet")
    pd.DataFrame(rows | {"hops": [2, None]}).to_csv(
        tmp_path / "pandas.csv"
    )  # 2.0, and lists as text
    pd.DataFrame(rows).to_parquet(tmp_path / "pandas.parquet")
    for name in ("a.csv", "a.parquet", "pandas.csv", "pandas.parquet"):
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
    with pytest.raises(InputError, match=r"no row has a question and an answer"):
        load_questions(path, "mine")
    with pytest.raises(
        InputError, match=r":1: expected an answer"
    ):  # published data sets have them
        load_questions(path, "nq")


ANSWERS = [
    ("Ann", ["Ann"]),
    (["Ann", "Ann ", "Bo"], ["Ann", "Bo"]),
    (1969, ["1969"]),
    (1969.0, ["1969"]),
    (3.5, ["3.5"]),
    (True, ["yes"]),
    ([False], ["no"]),
    ([None, "Ann", ""], ["Ann"]),
    ("['Ann', \"Bo's\"]", ["Ann", "Bo's"]),
    ('["Ann", 7]', ["Ann", "7"]),
    ("['Ann' 'Bo']", ["Ann", "Bo"]),
    ("['Ann'\n 'Bo, Al']", ["Ann", "Bo, Al"]),
    ("array(['Ann'], dtype='<U3')", ["Ann"]),
    ("{'target': array(['Ann', 'Bo'], dtype=object)}", ["Ann", "Bo"]),
    ("[np.str_('Ann'), nan]", ["Ann"]),
    ("('Ann', 'Bo')", ["Ann", "Bo"]),
    ("[1 2]", ["1", "2"]),
    ('["Ann", NaN, 1e999]', ["Ann", "1e999"]),
    ("['Ann', 1e999]", ["Ann", "Infinity"]),
    ("[{'text': 'Ann', 1: 'x'}]", ["Ann"]),
    (["['Ann', 'x']"], ["Ann", "x"]),
    ({"target": ["Ann"]}, ["Ann"]),
    ({"target": "['Ann']"}, ["Ann"]),
    ('{"target": ["Ann"], "style": "rule"}', ["Ann"]),
    ({"text": ["Ann"], "answer_start": [3]}, ["Ann"]),
    ([{"text": "Ann", "answer_start": 3}], ["Ann"]),
    ({"Aliases": ["Bo"], "Value": "Ann", "Type": "x"}, ["Ann", "Bo"]),
    ("[sic] Ann", ["[sic] Ann"]),
    ("[unknown]", ["[unknown]"]),
    (["[Ann, Bo"], ["[Ann, Bo"]),
    ("(Ann)", ["(Ann)"]),
    ("The 39 Steps", ["The 39 Steps"]),
]


@pytest.mark.parametrize(("value", "expected"), ANSWERS, ids=lambda value: str(value)[:30])
@pytest.mark.parametrize("field", ["answer", "golden_answers", "ground_truth"])
def test_answers_are_read_in_every_form_by_questions_and_imports_alike(
    tmp_path: Path, value: Any, expected: list[str], field: str
) -> None:
    row = {"question": TEXT, "output": "<answer> Ann </answer>", field: value}
    path = write(tmp_path, row)
    assert load_questions(path, "mine")[0].answers == expected
    [imported] = iterate_outputs([path])
    assert isinstance(imported, Trajectory)
    assert (imported.answers, imported.hop) == (expected, "unknown")


@pytest.mark.parametrize(
    "value",
    ["['Ann', Bo]", "['Ann'", "[Ann, Bo]", "{'target': f('Ann')}", "[b'Ann']", "[__import__('os')]",
     "{'style': 'rule'}", "[" * 9000, "['Ann', ...]", "[" + "9" * 5000 + "]", "['\\ud800']", {"a": "Ann"}, [["Ann", {"b": 1}]], "[{1: 'Ann'}]", "['Ann', {None: 'Bo'}]"],
    ids=lambda value: str(value)[:20],
)  # fmt: skip
def test_what_looks_like_a_list_of_answers_and_is_none_costs_its_row(
    tmp_path: Path, value: Any
) -> None:
    good = {"question": TEXT, "answer": "Ann", "output": "<answer> Ann </answer>"}
    path, notes = write(tmp_path, good | {"answer": value}, good), Notes()
    assert [one.answers for one in load_questions(path, "mine", notes=notes)] == [["Ann"]]
    assert notes.counts[MALFORMED] == 1
    assert notes.malformed[0].startswith(f"{path}:1: answer: ")
    skipped, imported = iterate_outputs([path])
    assert str(skipped).startswith(f"{path}:1: answer: ")
    assert isinstance(imported, Trajectory)


def test_a_dump_of_roll_outs_of_verl_is_imported(tmp_path: Path) -> None:
    turns = [
        "system\nSearch.\nuser\nUse tags. Question: {}\nassistant\n",
        "<|im_start|>user\n{}<|im_end|>\n<|im_start|>assistant\n<think>\n",
        "<|im_start|>user\nHi.<|im_end|>\n<|im_start|>assistant\nYes?<|im_end|>\n"
        "<|im_start|>user\n{}<|im_end|>\n<|im_start|>assistant\n",
        "user\nHi.\nassistant\nYes?\nuser\n{}\nassistant\n",
        "Question: {}",
    ]
    gts = "{'target': array(['Ann'], dtype=object)}"
    for turn in turns:
        row = {"input": turn.format(TEXT), "output": "<answer> Ann </answer>", "gts": gts}
        [imported] = iterate_outputs([write(tmp_path, row)])
        assert isinstance(imported, Trajectory)
        assert (imported.question, imported.answers) == (TEXT, ["Ann"])


@pytest.mark.parametrize(
    "part", ["think ", "user\n", "\nuser\nassistant ", "<|im_start|>user\n", "\n"]
)
def test_a_long_prompt_of_a_dump_takes_no_quadratic_time(part: str) -> None:
    record = RawRecord({"input": f"Who? {part * 40_000}."}, 1)
    assert bounded(lambda: prompted_question(record), 2) == record.value["input"]


SQUAD = {
    "title": "Brenholm",
    "paragraphs": [
        {
            "context": "Its mayor is Tom.",
            "qas": [
                {"id": "a", "question": TEXT, "answers": [{"text": "Tom", "answer_start": 13}], "is_impossible": False},
                {"id": "b", "question": "Why?", "answers": [], "is_impossible": True},
            ],
        }
    ],
}  # fmt: skip


def test_squad_is_read_nested_and_flat_with_its_paragraph_as_evidence(tmp_path: Path) -> None:
    flat = {
        "id": "a", "title": "Brenholm", "context": "Its mayor is Tom.", "question": TEXT,
        "answers": {"text": ["Tom"], "answer_start": [13]},
    }  # fmt: skip
    expected = Question("a", "mine", TEXT, ["Tom"], "unknown", ["Brenholm: Its mayor is Tom."])
    nested, notes = tmp_path / "squad.json", Notes()
    nested.write_text(json.dumps({"version": "2.0", "data": [SQUAD]}))
    assert load_questions(nested, "mine", notes=notes) == [expected]
    assert notes.counts[NO_ANSWER_IN_TEXT] == 1
    assert load_questions(write(tmp_path, flat), "mine") == [expected]


TABLE = '{name}{d}answer{d}{d}\n"Who, or what; is it?"{d}Anné{d}{d}\n{d}{d}{d}\nWhen?{d}1969{d}\n'


@pytest.mark.parametrize("delimiter", [",", ";", "\t", "|"])
@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig", "utf-16", "utf-16-le"])
@pytest.mark.parametrize("name", ["question", " Question ", "QUESTION"])
def test_tables_are_read_in_the_dialects_of_spreadsheets(
    tmp_path: Path, delimiter: str, encoding: str, name: str
) -> None:
    path = tmp_path / "Q.CSV"
    path.write_bytes(TABLE.format(d=delimiter, name=name).replace("\n", "\r\n").encode(encoding))
    assert dataset_of(path) == "questions"
    found = [(one.question, one.answers) for one in load_questions(path, "questions")]
    assert found == [("Who, or what; is it?", ["Anné"]), ("When?", ["1969"])]


@pytest.mark.parametrize(
    ("name", "content", "problem"),
    [
        ("q.csv", "question,answer\nWho?,Ren\xe9\n".encode("latin-1"), ":2: not UTF-8 text; save the file as UTF-8"),
        ("q.csv", b"PK\x03\x04" + bytes(40), ": is an Excel workbook or a ZIP archive; save the sheet as CSV UTF-8"),
        ("q.jsonl", gzip.compress(b"{}", mtime=0), ": is a gzip file; unpack it with gunzip"),
        ("q.csv", b"frage;antwort\nWer?;Ann\n", ": no row has a question and an answer; expected question and answer"),
        ("q.csv", b'question,answer\n"Who?,Ann', ":2: not readable as a table: unexpected end of data"),
        ("q.csv", b"question,answer\nWho?,Ann,1\n", ":2: expected 2 fields, as in the header, got 3"),
    ],
)  # fmt: skip
def test_what_cannot_be_read_is_named_with_its_remedy(
    tmp_path: Path, name: str, content: bytes, problem: str
) -> None:
    path = tmp_path / name
    path.write_bytes(content)
    with pytest.raises(InputError) as error:
        load_questions(path, dataset_of(path))
    assert str(error.value).startswith(f"{path}{problem}")
    assert "--dataset" not in str(error.value)  # which `init own` does not have


BAD: list[str] = [
    "{oops", "[1]", "null", "[" * 9000, '{"question": "Why?", "answer": "\\ud800"}', "\udcff",
    '{"question": 3, "answer": "Ann"}', '{"question": "Why?", "answer": "Ann", "hops": 0}',
    '{"question": "Why?", "answer": {}, "golden": [{}]}', '{"question": "Why?", "answer": Infinity, "hop": 1}',
    '{"question": "Why?", "answer": "Ann", "decomposition": 2}',
]  # fmt: skip


def test_a_malformed_row_costs_itself_wherever_it_is(tmp_path: Path) -> None:
    """The other columns of a good row hold what nobody reads."""
    good = '{"question": "Who?", "answer": "Ann", "a": NaN, "b": -Infinity, "c": 1e999, "d": "\\ud800"}'
    path, notes = tmp_path / "q.jsonl", Notes()
    path.write_bytes("\n".join([good, *BAD, good]).encode("utf-8", "surrogateescape"))
    assert len(load_questions(path, "mine", notes=notes)) == 2
    assert notes.counts[MALFORMED] == len(BAD)
    assert [place.partition(": ")[0] for place in notes.malformed] == [f"{path}:2"]


@pytest.mark.parametrize("text", ["[" + "," * 50_000, "[a\n" * 20_000])
def test_a_long_answer_that_begins_as_a_list_takes_no_quadratic_time(text: str) -> None:
    assert bounded(lambda: list(answer_texts(text)), 2) == [text]


def test_the_name_of_a_data_set_is_free_but_no_misspelled_one() -> None:
    assert QuestionFile(path="q.jsonl").dataset == "questions"
    assert QuestionFile(path="q.jsonl", dataset="harbour").dataset == "harbour"
    with pytest.raises(ValueError, match="expected musique, or a name that differs more from it"):
        QuestionFile(path="q.jsonl", dataset="musiqe")
    with pytest.raises(ValueError, match="names an average"):
        QuestionFile(path="q.jsonl", dataset="2-hop")
