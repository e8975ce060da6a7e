"""Reading and writing of records, checked against the record's dataclass.

Bulk data is Parquet (zstd); every record is also valid JSON, one object per line. Records are read
from Parquet, Arrow, JSON and JSON lines alike, also after another library converted them. A
malformed record raises InputError with ``file:line: field: problem`` before anything is written.
"""

from __future__ import annotations

import dataclasses
import json
import types
import typing
from collections.abc import Callable, Iterable, Iterator, Mapping, Set
from contextlib import suppress
from functools import cache, partial
from itertools import islice, zip_longest
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypeVar

from pipeline.core.atomic import json_text, parquet_writer, text_output
from pipeline.core.errors import InputError, Place
from pipeline.core.input_files import parse_json
from pipeline.core.records import OPTIONAL, Span
from pipeline.core.row_files import iterate_rows

if TYPE_CHECKING:
    import pyarrow as pa

R = TypeVar("R")
ROWS_PER_GROUP = 1024
Convert = Callable[[Any], Any]


@cache
def _validator(kind: Any) -> Any:
    """A validator of a record type that takes JSON values without converting them.

    Texts and booleans are not accepted as numbers. Numbers are finite and fit into 64 bits.
    """
    # The import takes 60 ms and only readers need it.
    from pydantic import TypeAdapter
    from pydantic_core import SchemaValidator

    return SchemaValidator(_without_conversion(TypeAdapter(kind).core_schema))


_SCALARS: dict[str, dict[str, Any]] = {
    "int": {"strict": True, "ge": -(2**63), "le": 2**63 - 1},
    "float": {"strict": True, "allow_inf_nan": False},
    "str": {"strict": True},
    "bool": {"strict": True},
}


def _without_conversion(schema: Any) -> Any:
    """A pydantic core schema whose scalar types are strict."""
    if isinstance(schema, list | tuple):
        return type(schema)(_without_conversion(item) for item in schema)
    if not isinstance(schema, dict):
        return schema
    changed = {name: _without_conversion(item) for name, item in schema.items()}
    return changed | _SCALARS.get(str(schema.get("type")), {})


def as_json(record: Any) -> dict[str, Any]:
    """A dataclass record as a dictionary of plain JSON values; other values are returned as is.

    Null fields among `OPTIONAL` are left out.
    """
    if not dataclasses.is_dataclass(record):
        return record  # type: ignore[no-any-return]
    return dataclasses.asdict(record, dict_factory=_without_nulls)  # type: ignore[arg-type]


def _without_nulls(fields: list[tuple[str, Any]]) -> dict[str, Any]:
    return {name: value for name, value in fields if value is not None or name not in OPTIONAL}


def parse_record(kind: type[R], value: Any) -> R:
    """One JSON value, in the form of a Parquet row or not, as a record of type ``kind``.

    Raises InputError with the field when the value does not fit the type.
    """
    from pydantic import ValidationError

    try:
        found: R = _validator(kind).validate_python(from_arrow(value, kind))  # type: ignore[arg-type]
        return found
    except ValidationError as error:
        first = error.errors()[0]
        field = ".".join(str(part) for part in first["loc"]) or "record"
        text = repr(first["input"])
        short = text if len(text) <= 60 else text[:57] + "..."
        raise InputError(f"{field}: {first['msg']} (got {short})") from None


def read_records(path: Path | str, kind: type[R]) -> list[R]:
    """All records of a file, as `iterate_records` yields them."""
    return list(iterate_records(path, kind))


def iterate_records(path: Path | str, kind: type[R]) -> Iterator[R]:
    """The records of a file, a few hundred in memory at a time.

    Raises InputError when the file is unreadable or a record does not fit ``kind``.
    """
    with Place(path) as place:
        for place.line, row in _rows(path):
            yield parse_record(kind, row)


def iterate_input(path: Path | str, kind: type[Any]) -> Iterator[tuple[int, dict[str, Any]]]:
    """(line or row number from 1, record as JSON values) of a file of records.

    ``kind`` tells how columns of a Parquet file are stored, as in `from_arrow`. Raises InputError
    when the file is unreadable.
    """
    return ((line, from_arrow(row, kind)) for line, row in _rows(path))


def _rows(path: Path | str) -> Iterator[tuple[int, dict[str, Any]]]:
    with Place(path) as place:
        for row in iterate_rows(path):
            place.line = row.place
            if isinstance(row.value, InputError):
                raise row.value
            yield row.line or row.number, row.value


def write_jsonl(path: Path | str, records: Iterable[Any]) -> int:
    """Write records as JSONL, as they come, and return their number.

    ``path`` is as in `pipeline.core.atomic.text_output`: nothing reaches it when ``records``
    raises.
    """
    count = 0
    with text_output(path) as write:
        for record in records:
            write(json_text(as_json(record), allow_nan=False) + "\n")
            count += 1
    return count


def arrow_type(hint: Any) -> Any:
    """The Arrow type of a field's type hint.

    Spans become structs {start, end, writer}, typed dictionaries structs of their keys, and other
    dictionaries JSON text.
    """
    import pyarrow as pa

    if hint == Span:
        return pa.struct([("start", pa.int32()), ("end", pa.int32()), ("writer", pa.string())])
    if dataclasses.is_dataclass(hint) or typing.is_typeddict(hint):
        return pa.struct([(name, arrow_type(kind)) for name, kind in _hints(hint).items()])
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    if origin is Literal:
        return pa.string()
    if origin is list:
        return pa.list_(arrow_type(arguments[0]))
    if origin is dict:
        return pa.string()
    if origin in (typing.Union, types.UnionType):
        return arrow_type(next(kind for kind in arguments if kind is not type(None)))
    return {str: pa.string(), int: pa.int64(), float: pa.float64(), bool: pa.bool_()}[hint]


_hints: Callable[[Any], dict[str, Any]] = cache(typing.get_type_hints)


@cache
def _codec(hint: Any) -> tuple[Convert | None, Convert | None]:
    """What gives a value of this type its form in Arrow, and back; None: the form is the same.

    Decoding leaves a value of another type to `parse_record`.
    """
    if hint == Span:
        return (
            lambda span: {"start": span[0], "end": span[1], "writer": span[2]},
            lambda span: (
                (span.get("start"), span.get("end"), span.get("writer"))
                if type(span) is dict
                else span
            ),
        )
    if dataclasses.is_dataclass(hint):
        hints = _hints(hint).items()
        decoders = {name: decode for name, inner in hints if (decode := _codec(inner)[1])}
        nullable = {name for name, inner in hints if type(None) in typing.get_args(inner)}
        decode_row = partial(_decoded_row, decoders, _hints(hint).keys() - nullable)
        return _row_encoder(_hints(hint)), decode_row
    if typing.is_typeddict(hint):
        return partial(_known_keys, hint), None
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    if hint is int:
        return None, _whole_number
    if origin is list:
        encode, decode = _codec(arguments[0])
        # Written out, because most numbers are in lists, whose items no library converts.
        return (
            encode and (lambda items: [None if item is None else encode(item) for item in items]),
            partial(_decoded_items, None if arguments[0] is int else decode),
        )
    if origin is dict:
        return partial(json.dumps, ensure_ascii=False), _decoded_json
    if origin in (typing.Union, types.UnionType):
        return _codec(next(kind for kind in arguments if kind is not type(None)))
    return None, None


def _row_encoder(hints: Mapping[str, Any]) -> Convert:
    encoders = {name: encode for name, hint in hints.items() if (encode := _codec(hint)[0])}

    def encode_row(record: Any) -> dict[str, Any]:
        row = {name: getattr(record, name) for name in hints}
        for name, encode in encoders.items():
            if row[name] is not None:
                row[name] = encode(row[name])
        return row

    return encode_row


def _known_keys(kind: Any, value: Any) -> Any:
    if unknown := value.keys() - _hints(kind).keys():
        raise ValueError(f"{', '.join(sorted(unknown))}: not a key of {kind.__name__}")
    return value


def from_arrow(value: Any, hint: Any) -> Any:
    """A value read from Parquet in the form that `parse_record` expects for this type hint."""
    _, decode = _codec(hint)
    return value if value is None or decode is None else decode(value)


def _whole_number(value: Any) -> Any:
    """Integers of a column with nulls are floats in pandas."""
    return int(value) if type(value) is float and value.is_integer() else value


def _decoded_items(decode: Convert | None, items: Any) -> Any:
    """A list; `datasets` may store a list of objects as an object of columns."""
    if type(items) is dict and all(type(column) is list for column in items.values()):
        cells = list(zip_longest(*items.values()))
        items = [dict(zip(items, row, strict=True)) for row in cells]
    if decode is None or type(items) is not list:
        return items
    return [item if item is None else decode(item) for item in items]


def _decoded_row(decoders: Mapping[str, Convert], not_null: Set[str], row: Any) -> Any:
    """A row without the nulls that a table has where a record lacks a field."""
    if type(row) is not dict:
        return row
    decoded = dict(row)
    if None in row.values():
        decoded = {k: cell for k, cell in row.items() if cell is not None or k not in not_null}
    for name, decode in decoders.items():
        if decoded.get(name) is not None:
            decoded[name] = decode(decoded[name])
    return decoded


def _decoded_json(text: Any) -> Any:
    with suppress(InputError):  # `parse_record` refuses the text with file, line and field
        return parse_json(text) if isinstance(text, str) else text
    return text


def write_parquet(
    path: Path, records: Iterable[Any], kind: type[Any], types: Mapping[str, Any] | None = None
) -> int:
    """Write records of type ``kind`` as Parquet (zstd), atomically, and return their number.

    Records are written as they come, in row groups of `ROWS_PER_GROUP`, so that the bytes of the
    file depend on the records only. ``types`` are narrower types of fields, such as the terms of a
    method's rewards. Raises ValueError when a dictionary has a key that its type lacks.
    """
    import pyarrow as pa

    schema, encode = arrow_schema(kind, types), _row_encoder({**_hints(kind), **(types or {})})
    count = 0
    records = iter(records)
    with parquet_writer(path, schema) as writer:
        while group := [encode(record) for record in islice(records, ROWS_PER_GROUP)]:
            writer.write_table(pa.Table.from_pylist(group, schema=schema))
            count += len(group)
    return count


def arrow_schema(kind: type[Any], types: Mapping[str, Any] | None = None) -> pa.Schema:
    """The Arrow schema of a record type, with narrower ``types`` of some fields."""
    import pyarrow as pa

    hints = {**_hints(kind), **(types or {})}
    return pa.schema([(name, arrow_type(hint)) for name, hint in hints.items()])
