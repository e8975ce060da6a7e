"""The raw records of a native file, the checks of their fields, and the document that one may hold.

Input: a file of rows (`pipeline.core.row_files`). Output: fields as text, lists and identifiers.
Every error names the field, the expected type and the value; `parsed_rows` adds ``file:line`` (or
``file: record 17``).
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, TypeVar

from pipeline.core.errors import InputError, Place
from pipeline.core.row_files import BadRows, Row, iterate_rows
from pipeline.core.text import one_line

MAX_ID = 1000  # characters of an id; ids of chunks and triplets repeat it
_SHOWN = 60  # characters of a value in a message
_SURROGATE = re.compile("[\ud800-\udfff]")
_BREAKS_LINES = re.compile(
    "[\x00-\x1f\x7f-\x9f\ud800-\udfff\u2028\u2029]"
)  # and control characters
Parsed = TypeVar("Parsed")


@dataclass(frozen=True, slots=True)
class RawRecord:
    """One raw record; ``place`` is the place of its row (`Row.place`).

    ``notes`` counts what the parser of the record left out, by reason.
    """

    value: dict[str, Any]
    place: int | str
    inside: str = ""  # field that holds this object, with a final period; empty at the top
    notes: Counter[str] = field(default_factory=Counter, compare=False)

    def plain(self) -> RawRecord:
        """The record with its names stripped and in lower case; names that are so already win."""
        names = [name.strip().lower() for name in self.value]
        if names == list(self.value):
            return self
        folded = dict(zip(names, self.value.values(), strict=True))
        exact = {name: value for name, value in self.value.items() if name in folded}
        return replace(self, value=folded | exact)

    def find(self, *names: str) -> Any:
        """The value of `first`; None when no field exists."""
        return self.first(*names)[1]

    def first(self, *names: str) -> tuple[str, Any]:
        """Name and value of the first of these fields that has a value, else of the first field.

        Tables of several sources have null, or in CSV "", in the columns of the others.
        """
        for name in names:
            if (value := self.value.get(name)) not in (None, ""):
                return name, value
        name = next((name for name in names if name in self.value), names[0])
        return name, self.value.get(name)

    def text(self, *names: str) -> str:
        """A non-empty string field, stripped; ``names`` are alternative field names.

        Raises InputError when the field is missing, empty or not a string.
        """
        name, value = self.present(*names)
        return self.checked_text(value, name)

    def checked_text(self, value: Any, name: str) -> str:
        """``value`` stripped. Raises InputError naming the field ``name`` unless it is a non-empty
        string that UTF-8 can encode."""
        if not isinstance(value, str) or not value.strip():
            raise self.expected(name, "a non-empty string", value)
        if not encodable(value):
            raise self.expected(name, "text without unpaired surrogates", value)
        return value.strip()

    def optional_text(self, *names: str) -> str | None:
        """A string field stripped; None when it is missing, null or empty.

        Raises InputError for another type.
        """
        name, value = self.first(*names)
        if value is None or (isinstance(value, str) and not value.strip()):
            return None
        return self.checked_text(value, name)

    def identifier(self, *names: str) -> str | None:
        """A field with an id, which is a string or an integer; None when missing, null or empty.

        Raises InputError for another type, for control characters and line breaks, for white space
        alone, and for more than `MAX_ID` characters.
        """
        name, value = self.first(*names)
        return None if value is None or value == "" else self.checked_identifier(value, name)

    def checked_identifier(self, value: Any, name: str) -> str:
        """``value`` as text. Raises InputError as `identifier` does."""
        if isinstance(value, float) and value.is_integer():  # of a pandas column with nulls
            value = int(value)
        if isinstance(value, bool) or not isinstance(value, int | str):
            raise self.expected(name, "a string or an integer", value)
        text = str(value)
        if not text.strip() or len(text) > MAX_ID or _BREAKS_LINES.search(text):
            wanted = f"an id of 1 to {MAX_ID} characters without control characters"
            raise self.expected(name, wanted, value)
        return text

    def flag(self, name: str) -> bool:
        """A field that is true or false; False when missing or null. Raises InputError for another
        type."""
        value = self.find(name)
        if not isinstance(value, bool | None):
            raise self.expected(name, "true or false", value)
        return bool(value)

    def items(self, *names: str) -> list[Any]:
        """A list field. Raises InputError when it is missing or not a list."""
        name, value = self.present(*names)
        return self.checked_items(value, name)

    def checked_items(self, value: Any, name: str, length: int | None = None) -> list[Any]:
        """``value``. Raises InputError naming the field unless it is a list (of ``length``
        items)."""
        if not isinstance(value, list) or (length is not None and len(value) != length):
            raise self.expected(name, "a list" if length is None else f"a list of {length}", value)
        return value

    def texts(self, values: Iterable[Any], name: str) -> list[str]:
        """Each value as `checked_text`; ``name`` is the field of the list that holds them."""
        return [self.checked_text(one, f"{name}.{n}") for n, one in enumerate(values)]

    def objects(self, values: Iterable[Any], name: str) -> Iterator[RawRecord]:
        """Each value as `checked_mapping`; ``name`` is the field of the list that holds them."""
        return (self.checked_mapping(one, f"{name}.{n}") for n, one in enumerate(values))

    def checked_mapping(self, value: Any, name: str) -> RawRecord:
        """An object inside this record as a RawRecord with the same place.

        Raises InputError naming the field unless ``value`` is an object.
        """
        if not isinstance(value, dict):
            raise self.expected(name, "an object", value)
        return RawRecord(value, self.place, f"{self.inside}{name}.", self.notes)

    def fields(self) -> str:
        """The names of the first fields, for messages."""
        return ", ".join(plain(name) for name in list(self.value)[:12]) or "no field"

    def present(self, *names: str) -> tuple[str, Any]:
        """Name and value as in `first`. Raises InputError when none of these fields exists."""
        if not any(name in self.value for name in names):
            wanted = self.inside + " or ".join(names)
            raise InputError(f"{wanted}: missing; the record has {self.fields()}")
        return self.first(*names)

    def expected(self, name: str, wanted: str, value: Any, remedy: str = "") -> InputError:
        """The error of a field with another ``value`` than ``wanted``."""
        end = f"; {remedy}" if remedy else ""
        problem = f"{plain(name)}: expected {wanted}, got {brief(value)}{end}"
        return InputError(self.inside + problem)


def read_rows(
    path: Path | str, bad: BadRows | None = None, rows: Iterable[Row] | None = None
) -> Iterator[RawRecord]:
    """Yield the records of a file, or of its ``rows``.

    A malformed row is added to ``bad``; without it the first raises InputError. So does a file that
    is missing, empty or broken.
    """
    row = None
    for row in iterate_rows(path) if rows is None else rows:
        if not isinstance(row.value, InputError):
            yield RawRecord(row.value, row.place)
            continue
        error = Place(path, row.place).error(row.value)
        if bad is None:
            raise error
        bad.add(error)
    if row is None:
        raise InputError.at(path, "empty; expected records")


def parsed_rows(
    path: Path,
    rows: Iterable[RawRecord],
    bad: BadRows,
    parse: Callable[[RawRecord], Iterable[Parsed]],
) -> Iterator[Parsed]:
    """Yield what ``parse`` finds in each row; one that it cannot read is added to ``bad``.

    Raises the InputError of the first malformed row when no row is readable.
    """
    readable = False
    for row in rows:
        try:
            found = list(parse(row))
        except InputError as error:
            bad.add(Place(path, row.place).error(error))
            continue
        readable = True
        yield from found
    if bad.first is not None and not readable:
        raise bad.first


def brief(value: Any) -> str:
    """A JSON value for an error message: one printable line, cut at 60 characters."""
    return plain(json.dumps(value, ensure_ascii=False, default=str))


def plain(name: str) -> str:
    """A field name or another text of a file for an error message, cut at 60 characters."""
    return one_line(name, _SHOWN)


def encodable(value: Any) -> bool:
    """Whether UTF-8 can encode every string of a JSON value."""
    text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
    return text.isascii() or not _SURROGATE.search(text)


@dataclass(frozen=True, slots=True)
class Document:
    """A document; ``id`` is None when the file has no ids.

    ``source`` is its address, or the part of its file if it begins with ``#``, or empty. ``lines``
    says that the lines of its text mean something: rows of tables, code, headings.
    """

    title: str
    text: str
    id: str | None = None
    source: str = ""
    lines: bool = False


def titled(row: RawRecord, value: str, field: str) -> Document:
    """A document from a string whose first line is the title, with or without double quotes.

    Raises InputError naming ``field`` when the string has only one line.
    """
    title, newline, text = value.partition("\n")
    if not newline:
        raise row.expected(field, "a title, a newline and a text", value)
    title = title.strip()
    quoted = len(title) > 1 and title[0] == title[-1] == '"'
    return Document(title[1:-1] if quoted else title, text.strip())


def join_sentences(row: RawRecord, value: object, field: str) -> str:
    """The sentences stripped and joined by spaces; HotpotQA's begin with a space, 2Wiki's do not.

    Raises InputError naming ``field`` unless ``value`` is a list of strings.
    """
    sentences = row.checked_items(value, field)
    if not all(isinstance(one, str) and encodable(one) for one in sentences):
        raise row.expected(field, "a list of strings", value)
    return " ".join(sentence.strip() for sentence in sentences)
