"""Read rows: of a user's file, as JSON lines, JSON, CSV, TSV, Parquet and Arrow, and of Parquet.

Input: a file of records, in UTF-8, or in UTF-16 with a byte order mark. Output: `Row`s of JSON
values, streamed; only a JSON object that wraps a list is read as a whole. A malformed row is a
`Row` that holds its error, so that a reader can go on; a broken file raises InputError.

What other libraries write is read as JSON: NaN is null, and infinite numbers, dates, decimals and
bytes are texts, so a column that nobody reads refuses no row. The functions ``parquet_*`` read what
stages wrote, and refuse what JSON lacks.
"""

from __future__ import annotations

import csv
import re
from collections import Counter, deque
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from itertools import chain, islice
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, TextIO

from pipeline.core.errors import STDIN, InputError, Place
from pipeline.core.input_files import (
    checked_utf8,
    open_text,
    parse_json,
)
from pipeline.core.json_stream import iterate_elements, iterate_member
from pipeline.core.text import one_line

if TYPE_CHECKING:
    import pyarrow as pa
    import pyarrow.parquet as pq

TABLES = (".csv", ".tsv")
ROW_SUFFIXES = (".jsonl", ".json", *TABLES, ".parquet", ".arrow", ".feather")
_WRAPPERS = ("data", "Data", "questions", "instances")
_MAX_CELL = 1 << 24  # characters; an unbalanced quote takes the rest of a table into one cell
_OPEN_QUOTES = 100  # of a table; for each, the lines after it are read again
_SAMPLE = 20  # lines of a table that tell its delimiter
_SHOWN = 60  # characters of a value in a message
_EXCEL_DELIMITER = re.compile(r"sep=(.)\s*$", re.IGNORECASE)
_ROWS_IN_MEMORY = 256
_PARQUET, _ARROW, _STREAM = b"PAR1", b"ARROW1", b"\xff\xff\xff\xff"
_PACKED = {
    b"\x1f\x8b": "a gzip file; unpack it with gunzip",
    b"\x28\xb5\x2f\xfd": "a Zstandard file; unpack it with unzstd",
    b"PK\x03\x04": "an Excel workbook or a ZIP archive; save the sheet as CSV UTF-8, or unpack it",
    b"\xd0\xcf\x11\xe0": "an Excel workbook; save the sheet as CSV UTF-8",
}


class Row(NamedTuple):
    """A row and its position; ``value`` is the error of a malformed row, without its file."""

    value: dict[str, Any] | InputError
    number: int  # from 1
    line: int | None = None  # from 1; None where a file is not read by line

    @property
    def place(self) -> int | str:
        """The line, or ``record 17``, for messages."""
        return self.line or f"record {self.number}"


@dataclass
class BadRows:
    """The malformed rows of a file, which were left out; the first says why."""

    count: int = 0
    first: InputError | None = None

    def add(self, error: InputError) -> None:
        """Count a row."""
        self.count += 1
        self.first = self.first or error


def iterate_rows(path: Path | str, *, delimiter: str | None = None) -> Iterator[Row]:
    """Yield the rows of a file; ``-`` is standard input, which holds JSON lines or JSON.

    The content tells Parquet and Arrow, and the suffix tables, which have a header line;
    ``delimiter`` is that of a table whose suffix says nothing. All else is JSON lines, a JSON list,
    or an object that wraps a list or is one record. Raises InputError when the file is missing,
    packed, or broken from some place on.
    """
    suffix = "" if str(path) == STDIN else Path(path).suffix.lower()
    with open_text(path) as stream:
        head = stream.buffer.peek(1)  # type: ignore[attr-defined]
        for magic, problem in _PACKED.items():
            if head.startswith(magic):
                raise InputError(f"is {problem}")
        if suffix == ".parquet" or head.startswith((_PARQUET, _ARROW, _STREAM)):
            yield from _arrow_rows(path, head)
        elif suffix in TABLES or delimiter:
            yield from _table(stream, delimiter or ("\t" if suffix == ".tsv" else None))
        else:
            yield from _json_rows(stream, head, suffix)


def first_character(path: Path) -> str:
    """The first character of a file that is not white space; empty if there is none nearby."""
    with open_text(path) as stream:
        return stream.read(4096).lstrip()[:1]


def read_jsonl(
    path: Path | str, cut_off: tuple[str, ...] = ()
) -> Iterator[tuple[int, dict[str, Any]]]:
    """Yield (line number from 1, object) of a file of JSON lines; ``-`` is standard input.

    A last line without its end is left out if it begins with one of ``cut_off``, or one of these
    with it. Raises InputError when the file is missing or unreadable, or a line is not a JSON
    object.
    """
    with open_text(path) as stream:
        for number, text in enumerate(stream, start=1):
            for row in _lines([(number, text)]):
                if not isinstance(row.value, InputError):
                    yield number, row.value
                elif text.endswith("\n") or not any(
                    text.startswith(begun) or begun.startswith(text) for begun in cut_off
                ):
                    raise row.value


def _json_rows(stream: TextIO, head: bytes, suffix: str) -> Iterator[Row]:
    first = head.decode(stream.encoding, "ignore").lstrip()[:1] if suffix != ".jsonl" else ""
    if first == "[":
        yield from _objects(iterate_elements(stream))
        return
    begun: list[str] = []  # to the second line that is not blank
    filled: list[str] = []
    while first == "{" and len(filled) < 2 and (line := stream.readline()):
        begun.append(line)
        filled += [line] if line.strip() else []
    if begun and not (len(filled) == 2 and _is_json(filled[0])):
        value = parse_json("".join(begun) + stream.read(), data=True)
        inner = next((value[name] for name in _WRAPPERS if name in value), None)
        if inner is not None and not isinstance(inner, list):
            found = one_line(repr(inner), _SHOWN)
            raise InputError(f"expected a list of records, got {found}")
        yield from _objects([value] if inner is None else inner)
        return
    yield from _lines(enumerate(chain(begun, stream), start=1))


def _is_json(line: str) -> bool:
    try:
        parse_json(line, data=True)
    except InputError:
        return False
    return True


def _lines(lines: Iterable[tuple[int, str]]) -> Iterator[Row]:
    number = 0
    for line, text in lines:
        if not text.strip():
            continue
        number += 1
        try:
            value = parse_json(checked_utf8(text).strip(), data=True)
            if not isinstance(value, dict):
                raise InputError(f"expected a JSON object, got {type(value).__name__}")
        except InputError as error:
            value = InputError(str(error), line)
        yield Row(value, number, line)


def member_rows(path: Path, member: str) -> Iterator[Row]:
    """Yield the elements of the list in a member of a file's JSON object."""
    return _objects(iterate_member(path, member))


def _objects(values: Iterable[Any]) -> Iterator[Row]:
    for number, value in enumerate(values, start=1):
        if not isinstance(value, dict | InputError):
            value = InputError(f"expected an object, got {one_line(repr(value), _SHOWN)}")
        yield Row(value, number)


def _table(stream: TextIO, delimiter: str | None) -> Iterator[Row]:
    """The rows of a table; ``line`` is the last line of a row.

    A column without a name is left out, and a name that several columns have gets their list.
    """
    sample = list(islice(stream, _SAMPLE))
    if sample and (named := _EXCEL_DELIMITER.match(sample[0])):
        delimiter, sample[0] = named[1], "\n"
    rows = _cells(chain(sample, stream), delimiter or _delimiter(sample))
    _, header = next(rows, (0, []))
    if isinstance(header, InputError):
        raise header
    names = [name.strip() for name in header]
    times = Counter(names)
    for number, (line, cells) in enumerate(rows, start=1):
        value: dict[str, Any] | InputError
        if isinstance(cells, InputError):
            value = cells
        elif any(names[len(cells) :]) or any(cells[len(names) :]):
            value = InputError(f"expected {len(names)} fields, as in the header, got {len(cells)}")
        else:
            value = {}
            for name, cell in zip(names, cells, strict=False):
                if times[name] > 1:
                    value.setdefault(name, []).append(cell)
                else:
                    value[name] = cell
            value.pop("", None)
        yield Row(value, number, line)


def _cells(lines: Iterator[str], delimiter: str) -> Iterator[tuple[int, list[str] | InputError]]:
    """The last line and the cells of each row that is not blank; a row that is none is its error.

    The lines after an open quote are read again.
    """
    csv.field_size_limit(_MAX_CELL)
    line, opened = 0, 0
    of_row, again = list[str](), deque[str]()

    def taken() -> Iterator[str]:
        while text := again.popleft() if again else next(lines, ""):
            of_row.append(text)
            yield text

    reader = csv.reader(taken(), delimiter=delimiter, strict=True)
    while True:
        of_row.clear()
        try:
            cells = next(reader, None)
            line += len(of_row)
            if cells is None:
                return
            checked_utf8("".join(cells))
            if any(map(str.strip, cells)):
                yield line, cells
        except csv.Error as error:
            line += 1
            opened += len(of_row) > 1
            again.extendleft(reversed(of_row[1:]))  # iterators in iterators overflow the stack
            reader = csv.reader(taken(), delimiter=delimiter, strict=True)
            cause = f"not readable as a table: {one_line(str(error), _SHOWN)}"
            problem = InputError(cause + "; write a quote inside quotes twice", line)
            if opened > _OPEN_QUOTES:
                raise problem from None
            yield line, problem
        except InputError as error:
            yield line, InputError(str(error), line)


def _delimiter(sample: list[str]) -> str:
    """The delimiter that gives the header several columns, and most lines as many."""

    def fit(delimiter: str) -> tuple[int, int]:
        try:
            rows = list(csv.reader(sample, delimiter=delimiter))
        except csv.Error:
            return (0, 0)
        columns = len(rows[0]) if rows else 0
        return (columns > 1 and sum(len(row) == columns for row in rows), columns)

    return max(",;\t|", key=fit)


def _arrow_rows(path: Path | str, head: bytes) -> Iterator[Row]:
    kind = "Arrow" if head.startswith((_ARROW, _STREAM)) else "Parquet"
    number = 0
    with arrow_errors(path, kind):
        for batch in _batches(path, head):
            names = batch.schema.names
            for cells in zip(*map(_values, batch.columns), strict=True):
                number += 1
                yield Row(dict(zip(names, cells, strict=True)), number)


def _batches(path: Path | str, head: bytes) -> Iterator[pa.RecordBatch]:
    import pyarrow as pa
    import pyarrow.parquet as pq

    if not head.startswith((_ARROW, _STREAM)):
        with pq.ParquetFile(path, pre_buffer=False) as file:
            yield from file.iter_batches(batch_size=_ROWS_IN_MEMORY)
        return
    with pa.memory_map(str(path)) as source:
        if head.startswith(_ARROW):
            reader = pa.ipc.open_file(source)
            whole = (reader.get_batch(n) for n in range(reader.num_record_batches))
        else:
            whole = iter(pa.ipc.open_stream(source))
        for batch in whole:
            for start in range(0, batch.num_rows, _ROWS_IN_MEMORY):
                yield batch.slice(start, _ROWS_IN_MEMORY)


def _values(column: pa.Array) -> list[Any]:
    """The JSON values of a column of any type."""
    import pyarrow as pa
    import pyarrow.compute as pc
    import pyarrow.types as is_type

    kind = column.type
    if is_type.is_dictionary(kind):
        return _values(column.dictionary_decode())
    if is_json_type(kind) and all_finite(column):
        with suppress(UnicodeDecodeError):
            return list(column.to_pylist())
    if is_type.is_struct(kind) and kind.num_fields:
        names = [kind.field(number).name for number in range(kind.num_fields)]
        rows = zip(*map(_values, column.flatten()), strict=True)
        valid = column.is_valid().to_pylist()
        cells = zip(valid, rows, strict=True)
        return [dict(zip(names, row, strict=True)) if there else None for there, row in cells]
    if is_type.is_map(kind):
        pair = pa.struct([("key", kind.key_type), ("value", kind.item_type)])
        maps = _values(column.cast(pa.list_(pair)))
        return [one and [list(pair.values()) for pair in one] for one in maps]
    if hasattr(kind, "value_type"):
        inner = iter(_values(column.flatten()))
        lengths = pc.list_value_length(column).to_pylist()
        return [None if length is None else list(islice(inner, length)) for length in lengths]
    if is_type.is_temporal(kind):  # Python has no nanoseconds, and no year 10000
        for read in (pa.string(), pa.int64()):  # a time zone may be unknown here
            with suppress(pa.ArrowException):
                return list(column.cast(read).cast(pa.string()).to_pylist())
    elif is_type.is_string(kind) or is_type.is_large_string(kind):
        column = column.cast(pa.large_binary())
    return [_json_value(value) for value in column.to_pylist()]


def _json_value(value: Any) -> Any:
    if isinstance(value, dict):
        return {str(name): _json_value(inner) for name, inner in value.items()}
    if isinstance(value, list | tuple):
        return [_json_value(inner) for inner in value]
    if isinstance(value, float) and value - value != 0:
        return None if value != value else f"{'-' * (value < 0)}Infinity"
    if value is None or isinstance(value, str | bool | int | float):
        return value
    if isinstance(value, bytes):
        return value.decode("utf-8", "surrogateescape")
    return value.isoformat() if hasattr(value, "isoformat") else str(value)


def iterate_parquet(
    path: Path | str, columns: Sequence[str] | None = None
) -> Iterator[dict[str, Any]]:
    """Rows of a Parquet file as JSON values, a few hundred in memory at a time.

    ``columns`` limits them to these columns. Raises the errors of `parquet_batches`.
    """
    with arrow_errors(path):
        for batch in parquet_batches(path, columns):
            yield from batch.to_pylist()


def parquet_batches(
    path: Path | str, columns: Sequence[str] | None = None
) -> Iterator[pa.RecordBatch]:
    """A Parquet file as Arrow batches of a few hundred rows.

    ``columns`` limits them to these columns. Raises InputError when the file is not readable
    Parquet, lacks a column, holds NaN or infinity, or has a column type that JSON lacks.
    """
    row = 0
    with _parquet(path, columns) as (file, names):
        for batch in file.iter_batches(batch_size=_ROWS_IN_MEMORY, columns=names):
            _check_finite(batch, row)
            row += batch.num_rows
            yield batch


def parquet_rows(path: Path | str, numbers: Sequence[int]) -> Iterator[dict[str, Any]]:
    """The rows with these numbers (from 0, rising) of a Parquet file; other numbers give none.

    Only the row groups that hold them are read, one at a time. Raises InputError as
    `iterate_parquet` does.
    """
    remaining, start = [number for number in numbers if number >= 0], 0
    with _parquet(path, None) as (file, _):
        for group in range(file.num_row_groups):
            end = start + file.metadata.row_group(group).num_rows
            inside = [number for number in remaining if number < end]
            remaining = remaining[len(inside) :]
            if inside:
                table = file.read_row_group(group)
                for number in inside:
                    [batch] = table.slice(number - start, 1).combine_chunks().to_batches()
                    _check_finite(batch, number)
                    yield from batch.to_pylist()
            start = end


@contextmanager
def _parquet(
    path: Path | str, columns: Sequence[str] | None
) -> Iterator[tuple[pq.ParquetFile, list[str]]]:
    """An open Parquet file, and the names of its ``columns``, whose types are checked."""
    import pyarrow.parquet as pq

    # Pre-buffering keeps the compressed bytes of all row groups read so far.
    with arrow_errors(path), pq.ParquetFile(path, pre_buffer=False) as file:
        schema = file.schema_arrow
        names = schema.names if columns is None else list(columns)
        for name in names:
            if name not in schema.names:
                raise InputError(f"{name}: no such column")
            if not is_json_type(kind := schema.field(name).type):
                problem = f"a column of type {kind} cannot be read; store text or numbers"
                raise InputError(f"{name}: {problem}")
        yield file, names


@contextmanager
def arrow_errors(path: Path | str, kind: str = "Parquet") -> Iterator[None]:
    """Failures to read a Parquet or Arrow file are InputErrors; all of them name the file."""
    import pyarrow as pa

    with Place(path):
        if not Path(path).is_file():
            missing = str(path) != STDIN and not Path(path).exists()
            raise InputError(
                "no such file" if missing else f"not a regular file, which {kind} needs"
            )
        try:
            yield
        except (pa.ArrowException, OSError, UnicodeDecodeError) as error:
            cause = str(error).splitlines()[0]
            raise InputError(f"not a readable {kind} file: {cause}") from None


def is_json_type(kind: pa.DataType) -> bool:
    """Whether JSON has values for an Arrow type."""
    import pyarrow.types as is_type

    if is_type.is_struct(kind):
        return all(is_json_type(kind.field(number).type) for number in range(kind.num_fields))
    if hasattr(kind, "value_type") and not is_type.is_map(kind):  # lists and dictionaries
        return is_json_type(kind.value_type)
    plain = ("integer", "floating", "boolean", "null", "string", "large_string", "string_view")
    return any(getattr(is_type, f"is_{name}")(kind) for name in plain)


def _check_finite(batch: pa.RecordBatch, before: int) -> None:
    """Raise InputError naming row and column when a number is NaN or infinite."""
    for name, column in zip(batch.schema.names, batch.columns, strict=True):
        if not all_finite(column):
            row = next(n for n in range(len(column)) if not all_finite(column[n : n + 1]))
            problem = f"{name}: holds NaN or infinity; use null or a number"
            raise InputError(problem, before + row + 1)


def all_finite(array: pa.Array) -> bool:
    """Whether no number in an Arrow array is NaN or infinite."""
    import pyarrow.compute as pc
    import pyarrow.types as is_type

    if is_type.is_floating(array.type):
        return bool(pc.all(pc.is_finite(array), min_count=0).as_py() is not False)
    if is_type.is_struct(array.type):
        return all(all_finite(field) for field in array.flatten())
    return all_finite(array.flatten()) if hasattr(array, "flatten") else True
