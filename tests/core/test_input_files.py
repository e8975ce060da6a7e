"""Damaged text, JSON, JSON lines and Parquet give an InputError that names file and line."""

import datetime
import io
import sys
from types import SimpleNamespace

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from pipeline.core.errors import InputError, Place
from pipeline.core.input_files import read_json, read_text
from pipeline.core.row_files import iterate_parquet, iterate_rows, read_jsonl
from pipeline.knowledge.corpus.bounded import bounded


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ('{"a": 1', "not valid JSON"),
        ("[1]", "expected a JSON object, got list"),
        ('{"a": ' + "9" * 5000 + "}", "value has 5000 digits"),
        ("[" * 100_000, "maximum recursion depth exceeded"),
        ('{"a": "\x00"}', "Invalid control character"),
    ],
)
def test_a_line_that_is_no_json_object_is_refused_with_its_number(tmp_path, text, problem):
    path = tmp_path / "broken.jsonl"
    path.write_text(f'{{"a": 1}}\n\n{text}\n')
    with pytest.raises(InputError, match=rf"broken\.jsonl:3: .*{problem}"):
        list(read_jsonl(path))


def test_text_in_another_encoding_is_refused_in_files_and_on_standard_input(tmp_path, monkeypatch):
    raw = '{"a": 1}\n{"a": "é"}\n'.encode("latin-1")
    path = tmp_path / "latin.jsonl"
    path.write_bytes(raw)
    with pytest.raises(InputError, match=r"latin\.jsonl:2: not UTF-8 text"):
        list(read_jsonl(path))
    monkeypatch.setattr(sys, "stdin", SimpleNamespace(buffer=io.BytesIO(raw)))
    with pytest.raises(InputError, match=r"<stdin>:2: not UTF-8 text"):
        list(read_jsonl("-"))


def test_a_byte_order_mark_and_windows_line_ends_are_accepted(tmp_path):
    path = tmp_path / "windows.jsonl"
    path.write_bytes(b'\xef\xbb\xbf{"a": 1}\r\n{"a": 2}\r\n')
    assert list(read_jsonl(path)) == [(1, {"a": 1}), (2, {"a": 2})]


def test_directories_missing_files_and_names_with_nul_are_refused(tmp_path):
    for read in (read_text, read_json, lambda path: list(read_jsonl(path))):
        with pytest.raises(InputError, match="is a directory; name a file"):
            read(tmp_path)
        with pytest.raises(InputError, match="no such file"):
            read(tmp_path / "absent")
        with pytest.raises(InputError, match="NUL"):
            read("a\0b")
    with pytest.raises(InputError, match="not a regular file"):
        list(iterate_parquet(tmp_path))


def test_parquet_columns_without_a_json_value_are_refused_by_name(tmp_path):
    path = tmp_path / "t.parquet"
    pq.write_table(pa.table({"a": [1], "when": [datetime.datetime(2026, 1, 1)]}), path)
    with pytest.raises(InputError, match="when: a column of type timestamp"):
        list(iterate_parquet(path))
    assert list(iterate_parquet(path, ["a"])) == [{"a": 1}]
    with pytest.raises(InputError, match="absent: no such column"):
        list(iterate_parquet(path, ["absent"]))


@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
def test_parquet_numbers_that_are_not_finite_are_refused_with_their_row(tmp_path, bad):
    path = tmp_path / "t.parquet"
    scores = [[{"score": 0.5}], [], [{"score": None}], [{"score": 1.0}, {"score": bad}]]
    pq.write_table(pa.table({"context": scores}), path)
    with pytest.raises(InputError, match=r"t\.parquet:4: context: holds NaN or infinity"):
        list(iterate_parquet(path))


def test_damaged_parquet_is_refused_wherever_the_damage_is(tmp_path):
    path = tmp_path / "t.parquet"
    pq.write_table(pa.table({"a": list(range(1000)), "b": ["text"] * 1000}), path)
    whole = path.read_bytes()
    for end in range(0, len(whole), 97):
        path.write_bytes(whole[:end])
        with pytest.raises(InputError, match=r"t\.parquet: not a readable Parquet file"):
            list(iterate_parquet(path))


@pytest.mark.parametrize("name", ["a.jsonl", "a.json", "a"])
@pytest.mark.parametrize("blank", ["", "\n", "\n\n  \n"])
def test_json_lines_are_told_from_one_object_whatever_lines_are_blank(tmp_path, name, blank):
    path = tmp_path / name
    path.write_text(f'{blank}{{"a": 1}}\n{blank}{{"data": [2]}}\n{blank}')
    assert [row.value for row in iterate_rows(path)] == [{"a": 1}, {"data": [2]}]
    if name != "a.jsonl":
        path.write_text(f'{blank}{{"data":\n [{{"a": 1}}, 3]}}\n{blank}')
        first, second = iterate_rows(path)
        assert first.value == {"a": 1}
        assert (second.place, str(second.value)) == ("record 2", "expected an object, got 3")


def test_an_error_gets_its_file_and_line_once():
    def read() -> None:
        with Place("outer.json"), Place("a.jsonl") as place:
            for place.line, value in enumerate("yn", start=1):
                if value == "n":
                    raise InputError("answer: missing")

    with pytest.raises(InputError, match=r"^a\.jsonl:2: answer: missing$"):
        read()
    assert str(Place("-", 3).error(InputError("empty"))) == "<stdin>:3: empty"
    assert str(Place("a.json").error(InputError("not JSON", 7))) == "a.json:7: not JSON"
    assert str(Place("a.json", "record 4").error(InputError("empty"))) == "a.json: record 4: empty"
    assert str(Place("a.json", 9).error(InputError.at("b.json", "empty"))) == "b.json: empty"


@pytest.mark.parametrize("bad", ['\n"a"x,b\r\n', '"a"x,"b\n'])
def test_a_table_of_malformed_rows_takes_no_quadratic_time(tmp_path, bad):
    path = tmp_path / "t.csv"
    path.write_text("title,text\n" + bad * 30_000 + "f,g\n")
    last = bounded(lambda: list(iterate_rows(path))[29_999:], 4)
    assert isinstance(last[0].value, InputError)
    assert last[1:] == [({"title": "f", "text": "g"}, 30_001, path.read_text().count("\n"))]


def test_a_table_of_many_columns_with_repeated_names_takes_no_quadratic_time(tmp_path):
    path = tmp_path / "t.csv"
    path.write_text(
        ",".join(f"a{n // 2}" for n in range(100_000)) + ",,b\n" + "1," * 100_001 + "2\n"
    )
    [row] = bounded(lambda: list(iterate_rows(path)), 4)
    assert row.value == {f"a{n}": ["1", "1"] for n in range(50_000)} | {"b": "2"}
