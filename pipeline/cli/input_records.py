"""Reading the records of a user's file, and checking the fields that a command needs.

A command describes its fields as a dataclass (a view) and ignores all others, so that a file needs no
more than those. A record that does not fit raises InputError with ``file:line: field: problem``.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, TypeVar

from pipeline.core.errors import InputError
from pipeline.core.input_files import source_name
from pipeline.core.record_io import iterate_input, parse_record
from pipeline.core.records import Span, Trajectory

View = TypeVar("View")
Record = dict[str, Any]
File = Path | str


def read_input(source: File) -> Iterator[tuple[int, Record]]:
    """(line or row number, record) of a JSONL or Parquet file; ``-`` is standard input."""
    return iterate_input(source, Trajectory)


def parse_view(
    kind: type[View], record: Record, source: File, line: int, **defaults: object
) -> View:
    """The fields of a record that ``kind`` names, checked; null is the same as absent.

    ``defaults`` replace the defaults of the view.
    """
    names = {field.name for field in dataclasses.fields(kind)}  # type: ignore[arg-type]
    values = {key: value for key, value in record.items() if key in names and value is not None}
    return parse_record(kind, defaults | values, source_name(source), line)


def check_spans(
    sequence: str | list[int],
    spans: Sequence[Span],
    field: str,
    source: File,
    line: int,
    required: bool = False,
) -> None:
    """Raise InputError unless the spans cover the sequence; empty spans pass if not ``required``."""
    from pipeline.grammars.spans import cover_error

    problem = cover_error(spans, len(sequence)) if spans or required else None
    if problem is not None:
        raise InputError.at(source_name(source), line, f"{field}: {problem}")
