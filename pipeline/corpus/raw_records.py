"""Read raw records from JSONL, JSON, CSV and TSV files, with their positions for error messages.

Input: a file as data sets publish it: JSONL, a JSON list, a JSON object that wraps a list, CSV or
TSV. Output: `RawRecord`s, streamed where the format allows it. Every error names ``file:line`` (or
``file: record 17``), the field, the expected type and the actual value.
"""

from __future__ import annotations

import csv
import json
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TextIO

from pipeline.core.errors import InputError
from pipeline.core.input_files import read_jsonl

_WRAPPERS = ("data", "Data", "questions", "instances")


@dataclass(frozen=True, slots=True)
class RawRecord:
    """One raw record and its position in its file."""

    value: dict[str, Any]
    path: Path
    number: int  # of the record, from 1
    line: int | None = None  # from 1; None for JSON, which is not read by line

    def error(self, problem: str) -> InputError:
        """An InputError with the position of this record."""
        where = "" if self.line is not None else f"record {self.number}: "
        return InputError.at(self.path, self.line, where + problem)

    def find(self, *names: str) -> Any:
        """The value of the first of these fields that exists; None when none does."""
        return next((self.value[name] for name in names if name in self.value), None)

    def text(self, *names: str) -> str:
        """A non-empty string field, stripped; ``names`` are alternative field names.

        Raises InputError when the field is missing, empty or not a string.
        """
        return self.checked_text(self._present(*names), names[0])

    def checked_text(self, value: Any, field: str) -> str:
        """``value`` stripped. Raises InputError naming ``field`` unless it is a non-empty
        string."""
        if not isinstance(value, str) or not value.strip():
            raise self.error(f"{field}: expected a non-empty string, got {brief(value)}")
        return value.strip()

    def items(self, *names: str) -> list[Any]:
        """A list field. Raises InputError when it is missing or not a list."""
        return self.checked_items(self._present(*names), names[0])

    def checked_items(self, value: Any, field: str, length: int | None = None) -> list[Any]:
        """``value``. Raises InputError naming ``field`` unless it is a list (of ``length``
        items)."""
        if not isinstance(value, list) or (length is not None and len(value) != length):
            wanted = "a list" if length is None else f"a list of {length}"
            raise self.error(f"{field}: expected {wanted}, got {brief(value)}")
        return value

    def checked_mapping(self, value: Any, field: str) -> RawRecord:
        """An object inside this record as a RawRecord with the same position.

        Raises InputError naming ``field`` unless ``value`` is an object.
        """
        if not isinstance(value, dict):
            raise self.error(f"{field}: expected an object, got {brief(value)}")
        return RawRecord(value, self.path, self.number, self.line)

    def _present(self, *names: str) -> Any:
        if not any(name in self.value for name in names):
            fields = ", ".join(list(self.value)[:12]) or "no field"
            raise self.error(f"{' or '.join(names)}: missing; the record has {fields}")
        return self.find(*names)


def brief(value: Any) -> str:
    """A JSON value for an error message, cut at 60 characters."""
    text = json.dumps(value, ensure_ascii=False, default=str)
    return text if len(text) <= 60 else text[:57] + "..."


def read_rows(path: Path) -> Iterator[RawRecord]:
    """Yield the records of a JSONL, JSON, CSV or TSV file.

    A ``.csv`` or ``.tsv`` file has a header line; for other suffixes the content decides. JSONL,
    CSV and TSV are streamed. Raises InputError when the file is missing, empty or malformed.
    """
    if path.suffix in (".csv", ".tsv"):
        yield from read_table(path, "\t" if path.suffix == ".tsv" else ",")
        return
    first = first_character(path)
    if first == "[":
        yield from _list_rows(path, load_json(path))
    elif first == "{" and path.suffix != ".jsonl" and not _is_jsonl(path):
        value = load_json(path)
        inner = next((value[name] for name in _WRAPPERS if name in value), None)
        yield from _list_rows(path, [value] if inner is None else inner)
    else:
        number = 0
        for number, (line, value) in enumerate(read_jsonl(path), start=1):
            yield RawRecord(value, path, number, line)
        if number == 0:
            raise InputError.at(path, None, "empty file; expected records")


def read_table(path: Path, delimiter: str) -> Iterator[RawRecord]:
    """Yield the rows of a delimited file with a header line; ``line`` is the last line of a row.

    Raises InputError when a row has another number of fields than the header, or when there is no
    row.
    """
    with _open(path) as stream:
        csv.field_size_limit(sys.maxsize)
        reader = csv.DictReader(stream, delimiter=delimiter)
        number = 0
        try:
            for number, value in enumerate(reader, start=1):
                row = RawRecord(dict(value), path, number, reader.line_num)
                if None in value or None in value.values():
                    fields = len(reader.fieldnames or ())
                    raise row.error(f"the row differs from the header; expected {fields} fields")
                yield row
        except (csv.Error, UnicodeDecodeError) as error:
            problem = f"not readable as a table: {error}"
            raise InputError.at(path, reader.line_num, problem) from None
        if number == 0:
            raise InputError.at(path, None, "empty table; expected a header line and records")


def load_json(path: Path) -> Any:
    """The value of a JSON file. Raises InputError with the line of a syntax error."""
    with _open(path) as stream:
        try:
            return json.load(stream)
        except json.JSONDecodeError as error:
            problem = f"not valid JSON: {error.msg} at column {error.colno}"
            raise InputError.at(path, error.lineno, problem) from None
        except UnicodeDecodeError as error:
            problem = f"not UTF-8 text ({error.reason} at byte {error.start})"
            raise InputError.at(path, None, problem) from None


def first_character(path: Path) -> str:
    """The first character of a file that is not white space; empty for an empty file."""
    with _open(path) as stream:
        try:
            while block := stream.read(4096):
                if text := block.lstrip("\ufeff \t\r\n"):
                    return text[0]
        except UnicodeDecodeError as error:
            problem = f"not UTF-8 text ({error.reason} at byte {error.start})"
            raise InputError.at(path, None, problem) from None
    return ""


def _open(path: Path) -> TextIO:
    try:
        return path.open(encoding="utf-8", newline="")
    except FileNotFoundError:
        raise InputError.at(path, None, "no such file") from None
    except IsADirectoryError:
        raise InputError.at(path, None, "this is a directory; name a file in it") from None


def _is_jsonl(path: Path) -> bool:
    """Whether the first line is valid JSON and another line follows."""
    with _open(path) as stream:
        try:
            json.loads(stream.readline())
        except json.JSONDecodeError:
            return False
        return bool(stream.readline().strip())


def _list_rows(path: Path, values: Any) -> Iterator[RawRecord]:
    if not isinstance(values, list):
        raise InputError.at(path, None, f"expected a list of records, got {brief(values)}")
    if not values:
        raise InputError.at(path, None, "empty list; expected records")
    for number, value in enumerate(values, start=1):
        if not isinstance(value, dict):
            problem = f"record {number}: expected an object, got {brief(value)}"
            raise InputError.at(path, None, problem)
        yield RawRecord(value, path, number)
