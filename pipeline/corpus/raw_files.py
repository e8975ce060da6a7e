"""Read raw records from JSONL, JSON, CSV, TSV and Parquet files.

Input: a file as data sets publish it: JSONL, a JSON list, a JSON object that wraps a list, CSV, TSV
or Parquet. Output: `RawRecord`s, streamed; only a JSON object that wraps a list is read as a whole.
Every error names ``file:line`` (or ``file: record 17``).
"""

from __future__ import annotations

import csv
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from pipeline.core.errors import InputError
from pipeline.core.input_files import iterate_parquet, parse_json, read_jsonl, read_text
from pipeline.corpus.json_stream import iterate_array
from pipeline.corpus.raw_records import RawRecord, brief, plain
from pipeline.corpus.text_files import first_character, open_text, reading

_WRAPPERS = ("data", "Data", "questions", "instances")
_MAX_CELL = 1 << 24  # characters; an unbalanced quote takes the rest of a table into one cell


def read_rows(path: Path) -> Iterator[RawRecord]:
    """Yield the records of a JSONL, JSON, CSV, TSV or Parquet file.

    A ``.csv`` or ``.tsv`` file has a header line; for suffixes but these and ``.parquet`` the
    content decides. Raises InputError when the file is missing, empty or malformed, or a record has
    text that UTF-8 cannot encode.
    """
    for row in _rows(path):
        row.check_encodable()
        yield row


def _rows(path: Path) -> Iterator[RawRecord]:
    if path.suffix in (".csv", ".tsv"):
        yield from read_table(path, "\t" if path.suffix == ".tsv" else ",")
        return
    if path.suffix == ".parquet":
        yield from list_rows(path, iterate_parquet(path))
        return
    first = first_character(path)
    if first == "[":
        yield from list_rows(path, iterate_array(path))
    elif first == "{" and path.suffix != ".jsonl" and not _is_jsonl(path):
        value = parse_json(read_text(path), path)
        inner = next((value[name] for name in _WRAPPERS if name in value), None)
        if inner is not None and not isinstance(inner, list):
            raise InputError.at(path, None, f"expected a list of records, got {brief(inner)}")
        yield from list_rows(path, [value] if inner is None else inner)
    else:
        number = 0
        for number, (line, value) in enumerate(read_jsonl(path), start=1):
            yield RawRecord(value, path, number, line)
        if number == 0:
            raise InputError.at(path, None, "empty file; expected records")


def list_rows(path: Path, values: Iterable[Any]) -> Iterator[RawRecord]:
    """The elements of a JSON list as records.

    Raises InputError when an element is not an object, or when the list is empty.
    """
    number = 0
    for number, value in enumerate(values, start=1):
        if not isinstance(value, dict):
            problem = f"record {number}: expected an object, got {brief(value)}"
            raise InputError.at(path, None, problem)
        yield RawRecord(value, path, number)
    if number == 0:
        raise InputError.at(path, None, "empty list; expected records")


def read_table(path: Path, delimiter: str) -> Iterator[RawRecord]:
    """Yield the rows of a delimited file with a header line; ``line`` is the last line of a row.

    Raises InputError when a row has another number of fields than the header, when a quote is not
    closed, when two columns have the same name, or when there is no row.
    """
    number = 0
    with open_text(path) as stream:
        csv.field_size_limit(_MAX_CELL)
        reader = csv.reader(stream, delimiter=delimiter, strict=True)
        header = _cells(reader, path) or []
        if len(set(header)) != len(header):
            repeated = next(name for name in header if header.count(name) > 1)
            raise InputError.at(path, 1, f"two columns are called {plain(repeated)}; rename one")
        while (cells := _cells(reader, path)) is not None:
            number += 1
            row = RawRecord(dict(zip(header, cells, strict=False)), path, number, reader.line_num)
            if len(cells) != len(header):
                raise row.error(
                    f"the row differs from the header; expected {len(header)} fields, got "
                    f"{len(cells)}"
                )
            yield row
    if number == 0:
        raise InputError.at(path, None, "empty table; expected a header line and records")


def _cells(reader: Any, path: Path) -> list[str] | None:
    """The next row of a table that is not blank; None at the end."""
    while True:
        line = reader.line_num + 1  # a row may take several lines; the error names the first
        try:
            with reading(path):
                cells: list[str] | None = next(reader, None)
        except csv.Error as error:
            cause = plain(str(error))
            problem = f"not readable as a table: {cause}; write a quote inside quotes twice"
            raise InputError.at(path, line, problem) from None
        if cells is None or cells:
            return cells


def _is_jsonl(path: Path) -> bool:
    """Whether the first line is valid JSON and another line follows."""
    with open_text(path) as stream, reading(path):
        first, second = stream.readline(), stream.readline()
    if not second.strip():
        return False
    try:
        parse_json(first, path)
    except InputError:
        return False
    return True
