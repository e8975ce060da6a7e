"""Read tables by row from Arrow arrays, without a Python object per row.

Input: Parquet files, which are decompressed into memory, or Arrow files, which are memory-mapped:
opening one reads no data, and all processes of a host share its pages. Output: rows on demand, as
tuples (`Columns`) or records (`Records`). A value takes its bytes and 4 bytes of offset.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Iterator, Sequence
from pathlib import Path
from typing import Any, TypeVar, overload

from pipeline.core.errors import InputError, StoreError

R = TypeVar("R")
_BLOCK = 4_096  # rows converted to Python objects at once while iterating over a table


class Columns:
    """Text columns of a Parquet or Arrow file; ``columns[row]`` is the tuple of their values."""

    def __init__(self, path: Path, names: Sequence[str]) -> None:
        """Raises InputError when the file is missing, unreadable or lacks a column."""
        import pyarrow as pa

        try:
            table = _table(path, names)
        except (OSError, pa.ArrowException) as error:
            raise InputError.at(path, f"not a readable {_kind(path)} file: {error}") from None
        missing = [name for name in names if name not in table.column_names]
        if missing:
            raise InputError.at(path, f"no column {', '.join(missing)}")
        self._length: int = table.num_rows
        # Chunked arrays are kept: in one array, offsets of 4 bytes limit a column to 2 GiB of text.
        self._arrays: list[Any] = [table.column(name) for name in names]

    def __len__(self) -> int:
        return self._length

    def __getitem__(self, row: int) -> tuple[str, ...]:
        return tuple(array[row].as_py() for array in self._arrays)

    def column(self, number: int) -> list[str]:
        """All values of one column, by its position in ``names``."""
        values: list[str] = self._arrays[number].to_pylist()
        return values

    def iterate(self, start: int = 0, stop: int | None = None) -> Iterator[tuple[str, ...]]:
        """Yield rows start to stop; only one block of them is in memory."""
        stop = self._length if stop is None else min(stop, self._length)
        for low in range(start, stop, _BLOCK):
            count = min(_BLOCK, stop - low)
            parts = [array.slice(low, count).to_pylist() for array in self._arrays]
            yield from zip(*parts, strict=True)

    def where(self, number: int, values: Collection[str]) -> list[int]:
        """Numbers of the rows whose column has one of these values, ascending."""
        import pyarrow as pa
        import pyarrow.compute as pc

        wanted = pa.array(list(values), type=pa.string())
        rows: list[int] = []
        start = 0
        for part in self._arrays[number].chunks:  # per record batch: the mask stays small
            found = pc.indices_nonzero(pc.is_in(part, value_set=wanted))
            rows += [start + row for row in found.to_pylist()]
            start += len(part)
        return rows

    def distinct(self, number: int) -> int:
        """The number of distinct values of a column."""
        import pyarrow.compute as pc

        return int(pc.count_distinct(self._arrays[number]).as_py())

    @property
    def nbytes(self) -> int:
        """Bytes of all values and offsets, memory-mapped or in memory."""
        return sum(int(array.nbytes) for array in self._arrays)


class Records(Sequence[R]):
    """A sequence of records whose fields are all text, read from a file on demand.

    A list of them would take about a kilobyte of Python objects per record.
    """

    def __init__(self, path: Path, kind: type[R]) -> None:
        """``kind`` is the dataclass of the records. Raises InputError as `Columns` does."""
        fields = dataclasses.fields(kind)  # type: ignore[arg-type]
        self._kind = kind
        self._names = [field.name for field in fields]
        self._columns = Columns(path, self._names)

    def __len__(self) -> int:
        return len(self._columns)

    @overload
    def __getitem__(self, row: int) -> R: ...
    @overload
    def __getitem__(self, row: slice) -> list[R]: ...
    def __getitem__(self, row: int | slice) -> R | list[R]:
        if isinstance(row, int):
            return self._kind(*self._columns[row])
        start, stop, step = row.indices(len(self))
        if step != 1:
            return [self[number] for number in range(start, stop, step)]
        return [self._kind(*values) for values in self._columns.iterate(start, stop)]

    def __iter__(self) -> Iterator[R]:
        return (self._kind(*values) for values in self._columns.iterate())

    def where(self, field: str, values: Collection[str]) -> list[R]:
        """The records whose field has one of these values, in order."""
        return [self[row] for row in self._columns.where(self._names.index(field), values)]

    def distinct(self, field: str) -> int:
        """The number of distinct values of a field."""
        return self._columns.distinct(self._names.index(field))


def _table(path: Path, names: Sequence[str]) -> Any:
    import pyarrow as pa
    import pyarrow.parquet as pq

    if _kind(path) == "Parquet":
        return pq.read_table(path, columns=list(names))
    with pa.memory_map(str(path)) as source:
        return pa.ipc.open_file(source).read_all()


def _kind(path: Path) -> str:
    return "Arrow" if path.suffix == ".arrow" else "Parquet"


def check_rows(name: str, actual: int, expected: int, folder: Path) -> None:
    """Raise StoreError when an index and its table have different numbers of rows."""
    if actual != expected:
        raise StoreError(
            f"{folder}: {name} has {actual} rows, its table has {expected}; "
            "run the index stage again"
        )
