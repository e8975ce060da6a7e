"""Read the members of a large JSON array or object one at a time.

Data sets publish arrays of several hundred megabytes; as Python objects they would take several
times that. Input: a file whose JSON value is an array or an object. Output: its members in order.
Memory: one block of text and one member. A repeated name of an object is yielded each time. An
element that is well formed and has no value (`core.input_files.parse_json`) is yielded as its
error. `ijson` was tried instead: it refuses published OpenIE files, which have NaN after their
documents, replaces half a surrogate pair by "?", and names no line in its errors.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any, TextIO

from pipeline.core.errors import InputError
from pipeline.core.input_files import checked_utf8, open_text, parse_json

_BLOCK = 1 << 20  # characters read at once; more for a larger member
_SPACE = " \t\r\n"
_AFTER_VALUE = f"{_SPACE},]}}:"
# Finds the end of a member. Numbers stay text here; `parse_json` converts and checks them.
_SCANNER = json.JSONDecoder(parse_int=str, parse_float=str, parse_constant=str)


def iterate_elements(stream: TextIO) -> Iterator[Any]:
    """Yield the elements of the array of an open file. Raises InputError when it is none."""
    text = _Text(stream)
    yield from text.elements()
    text.expect_end()


def iterate_member(path: Path, member: str) -> Iterator[Any]:
    """Yield the elements of the array in a member of the file's object.

    Raises InputError when the file is unreadable or not JSON, or has no such array.
    """
    with open_text(path) as stream:
        text = _Text(stream)
        for name in text.names():
            if name == member:
                yield from text.elements()
                return
            text.value()
        raise InputError(f"{member}: missing; expected an object with this list")


def iterate_object(path: Path) -> Iterator[tuple[str, Any]]:
    """Yield name and value of every member of the file's object.

    Raises InputError when the file is unreadable or not a JSON object.
    """
    with open_text(path) as stream:
        text = _Text(stream)
        for name in text.names():
            yield name, text.value()
        text.expect_end()


class _MemberError(InputError):
    """A member has no value, and the members after it may have."""


class _Text:
    """A position in a JSON text of which a part is in memory."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        self._text = ""
        self._position = 0
        self._line = 1  # from 1, of the character at `_counted`
        self._counted = 0
        self._complete = False

    def elements(self) -> Iterator[Any]:
        """Yield the elements of the array at this position."""
        for _ in self._members("[", "]"):
            try:
                element = self.value()
            except _MemberError as error:
                element = InputError(str(error), error.line)
            yield element

    def names(self) -> Iterator[str]:
        """Yield the names of the object at this position; the caller takes each value."""
        for _ in self._members("{", "}"):
            if self._next() != '"':
                raise self._error("expected a name in double quotes")
            name = self.value()
            self._take(":")
            yield name

    def value(self) -> Any:
        """The JSON value at this position."""
        self._next()
        size = _BLOCK
        while (end := self._end_of_value()) is None:
            self._fill(size)
            size *= 2
        line = self._count_lines()
        text, self._position = self._text[self._position : end], end
        try:
            return parse_json(checked_utf8(text), data=True)
        except InputError as error:
            raise _MemberError(str(error), line) from None

    def expect_end(self) -> None:
        """Raise InputError unless only white space follows."""
        if self._next():
            raise self._error("text after the end of the value")

    def _members(self, opening: str, closing: str) -> Iterator[None]:
        self._take(opening)
        if self._next() != closing:
            yield
            while self._next() != closing:
                self._take(",")
                yield
        self._position += 1

    def _end_of_value(self) -> int | None:
        """The offset after the value; None when more text is needed."""
        try:
            end = _SCANNER.raw_decode(self._text, self._position)[1]
        except json.JSONDecodeError as error:
            if not self._complete:
                return None
            self._position = error.pos
            raise self._error(error.msg) from None
        except RecursionError:
            raise self._error("maximum recursion depth exceeded") from None
        # A number could go on in the next block, also after a period.
        ended = end < len(self._text) and self._text[end] in _AFTER_VALUE
        return end if ended or self._complete else None

    def _next(self) -> str:
        """The next character that is not white space, without taking it; empty at the end."""
        while True:
            while char := self._text[self._position : self._position + 1]:
                if char not in _SPACE:
                    return char
                self._position += 1
            if self._complete:
                return ""
            self._fill(_BLOCK)

    def _take(self, char: str) -> None:
        if self._next() != char:
            raise self._error(f"expected {char!r}")
        self._position += 1

    def _fill(self, size: int) -> None:
        block = self._stream.read(size)
        self._complete = not block
        self._count_lines()
        self._text = self._text[self._position :] + block
        self._position = self._counted = 0

    def _count_lines(self) -> int:
        """The line of this position; counts only the lines since the last call."""
        self._line += self._text.count("\n", self._counted, self._position)
        self._counted = self._position
        return self._line

    def _error(self, problem: str) -> InputError:
        return InputError(f"not valid JSON: {problem}", self._count_lines())
