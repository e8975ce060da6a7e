"""Strict reading of text and JSON.

All commands and stages read files through this module and `pipeline.core.row_files`, which reads
rows and Parquet, so that every damaged file gives an InputError with ``file:line: problem``. JSON
is read as RFC 8259 defines it: NaN and Infinity are refused, as are numbers too large for a float.
"""

from __future__ import annotations

import io
import json
import math
import re
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import cache, partial
from pathlib import Path
from typing import Any, BinaryIO, TextIO

from pipeline.core.errors import STDIN, InputError, Place

_BOM = b"\xef\xbb\xbf"
_LARGE_EXPONENT = re.compile(r"[eE]\+?\d{3}")
_NOT_UTF8 = re.compile("[\udc80-\udcff]")


def read_text(path: Path | str) -> str:
    """The content of a UTF-8 text file, without a byte order mark; ``-`` is standard input.

    Raises InputError when the file is missing, unreadable, a directory, or not UTF-8.
    """
    with _opened(path) as stream:
        try:
            return stream.read().removeprefix(_BOM).decode()
        except UnicodeDecodeError as error:
            problem = f"not UTF-8 text ({error.reason} at byte {error.start})"
            raise InputError(problem) from None


def read_json(path: Path | str, expected: type[dict[str, Any]] | type[list[Any]] = dict) -> Any:
    """The JSON value of a file, which must be of type ``expected`` (dict or list).

    Raises InputError when the file is unreadable, is not JSON, or holds a value of another type.
    """
    with Place(path):
        value = parse_json(read_text(path))
        if not isinstance(value, expected):
            problem = f"expected a JSON {'object' if expected is dict else 'array'}"
            raise InputError(f"{problem}, got {type(value).__name__}")
    return value


def parse_json(text: str, name: Path | str = "", *, data: bool = False) -> Any:
    """The value of a JSON text; ``name`` names the text in messages; a whole file needs none.

    In rows of ``data`` NaN is null, and other numbers that JSON lacks are texts. Raises InputError
    for invalid JSON, NaN and Infinity, numbers too large for a float, and very deep nesting.
    """
    try:
        return _decoder(data, bool(_LARGE_EXPONENT.search(text))).decode(text)
    except (ValueError, RecursionError) as error:
        line, cause = None, str(error)
        if isinstance(error, json.JSONDecodeError):
            line, cause = error.lineno, f"{error.msg} at column {error.colno}"
        problem = InputError(f"not valid JSON: {cause}", line)
        raise problem if not name else InputError(str(Place(name).error(problem))) from None


@cache
def _decoder(data: bool, large: bool) -> json.JSONDecoder:
    # A check of every number takes several times as long.
    parse_float = partial(_finite, data) if large else None
    return json.JSONDecoder(parse_constant=partial(_constant, data), parse_float=parse_float)


def _constant(data: bool, text: str) -> str | None:
    if not data:
        raise ValueError(f"{text} is not a JSON number; use null")
    return None if text == "NaN" else text


def _finite(data: bool, text: str) -> float | str:
    if math.isfinite(value := float(text)):
        return value
    if not data:
        raise ValueError(f"the number {text:.24} is too large")
    return text


@contextmanager
def open_text(path: Path | str) -> Iterator[TextIO]:
    """A text stream of a file or of standard input, without a byte order mark, with its line ends.

    The text is UTF-8, or UTF-16 or UTF-32 if its first bytes say so. Bytes that are not UTF-8
    become surrogates, which `checked_utf8` refuses. Raises InputError as `read_text` does.
    """
    with _opened(path) as raw:
        stream = raw if hasattr(raw, "peek") else io.BufferedReader(raw)  # type: ignore[type-var]
        encoding = json.detect_encoding(stream.peek(4)[:4])
        errors = "surrogateescape" if encoding.startswith("utf-8") else "strict"
        text = io.TextIOWrapper(stream, encoding, errors, newline="")
        try:
            yield text
        except UnicodeDecodeError as error:
            problem = f"not {encoding.upper()} text ({error.reason}); save it as UTF-8"
            raise InputError(problem) from None
        finally:
            text.detach()


def checked_utf8(text: str) -> str:
    """A text of `open_text`. Raises InputError when it has a byte that is not UTF-8."""
    if not text.isascii() and _NOT_UTF8.search(text):
        problem = (
            "not UTF-8 text; save the file as UTF-8 (CSV UTF-8 in Excel), or convert it: "
            "iconv -f cp1252 -t UTF-8"
        )
        raise InputError(problem)
    return text


@contextmanager
def _opened(path: Path | str) -> Iterator[BinaryIO]:
    """A binary stream of a file or of standard input; failures to open or read are InputErrors."""
    if "\0" in str(path):
        raise InputError("a file name contains a NUL character; name a file")
    with Place(path):
        try:
            if str(path) == STDIN:
                yield sys.stdin.buffer
                return
            # Opening a FIFO waits for a writer, which may never come. The pipes of a shell
            # (``<(command)``) have names below /dev or /proc, and a writer.
            of_shell = Path(path).absolute().parts[1:2] in (("dev",), ("proc",))
            if Path(path).is_fifo() and not of_shell:
                raise InputError(f"is a FIFO; name a file, or {STDIN} for standard input")
            with open(path, "rb") as stream:
                yield stream
        except FileNotFoundError:
            raise InputError("no such file") from None
        except IsADirectoryError:
            raise InputError("is a directory; name a file") from None
        except OSError as error:
            raise InputError(f"not a readable file: {error.strerror}") from None


def leaves(value: Any, prefix: str = "") -> Iterator[tuple[str, Any]]:
    """(dotted name, value) for every value inside nested mappings, in order; tuples become lists.

    ``prefix`` is the name of ``value`` itself. An empty mapping has no values.
    """
    if isinstance(value, Mapping):
        for key, below in value.items():
            yield from leaves(below, f"{prefix}.{key}" if prefix else str(key))
    else:
        yield prefix, list(value) if isinstance(value, tuple) else value


def differing(before: Any, after: Any) -> Iterator[tuple[str, Any, Any]]:
    """The `leaves` that differ, by name, with the value before and after; None where it lacks."""
    old, new = dict(leaves(before)), dict(leaves(after))
    for name in sorted(old.keys() | new.keys()):
        if old.get(name) != new.get(name):
            yield name, old.get(name), new.get(name)
