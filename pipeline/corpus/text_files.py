"""Open text files of native data: UTF-8 without a byte order mark, failures as InputErrors."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TextIO

from pipeline.core.errors import InputError


@contextmanager
def open_text(path: Path) -> Iterator[TextIO]:
    """A text stream of a regular file, which keeps its line ends.

    Raises InputError when the file is missing, unreadable or not a regular file. Reading from the
    stream must be inside `reading`.
    """
    if path.exists() and not path.is_file():
        what = "a directory" if path.is_dir() else "not a regular file; data is read more than once"
        raise InputError.at(path, None, f"is {what}; name a file")
    with reading(path):
        stream = path.open(encoding="utf-8-sig", newline="")
    with stream:
        yield stream


@contextmanager
def reading(path: Path) -> Iterator[None]:
    """Failures to open or to read ``path`` as InputErrors."""
    try:
        yield
    except FileNotFoundError:
        raise InputError.at(path, None, "no such file") from None
    except UnicodeDecodeError as error:
        problem = f"not UTF-8 text ({error.reason})"
        raise InputError.at(path, _undecodable_line(path), problem) from None
    except OSError as error:
        raise InputError.at(path, None, f"not a readable file: {error.strerror}") from None


def _undecodable_line(path: Path) -> int | None:
    """The number of the first line that is not UTF-8, from 1."""
    with path.open("rb") as stream:
        for number, line in enumerate(stream, start=1):
            try:
                line.decode()
            except UnicodeDecodeError:
                return number
    return None


def first_character(path: Path) -> str:
    """The first character of a file that is not white space; empty for an empty file."""
    with open_text(path) as stream, reading(path):
        while block := stream.read(4096):
            if text := block.lstrip():
                return text[0]
    return ""
