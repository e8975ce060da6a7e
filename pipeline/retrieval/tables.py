"""Columns of the corpus and graph tables, held as Arrow arrays and read row by row.

Purpose: chunks and triplets by row without a Python object per row of the corpus. Input: Parquet
files, which are unpacked into memory, or Arrow files, which are memory-mapped: opening one reads
nothing, and all processes of a host share its pages. Output: rows as they are needed. A value costs
its bytes and 4 of offset. Also `best`, the row order that every stage of retrieval uses.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pipeline.errors import InputError, StoreError


class Columns:
    """Text columns of one Parquet or Arrow file; ``columns[row]`` is a tuple of their values."""

    def __init__(self, path: Path, names: Sequence[str]) -> None:
        """Raises InputError when the file is missing, unreadable or lacks a column."""
        import pyarrow as pa

        try:
            table = _table(path, names)
        except (OSError, pa.ArrowException) as error:
            raise InputError.at(path, None, f"not a readable {_kind(path)} file: {error}") from None
        absent = [name for name in names if name not in table.column_names]
        if absent:
            raise InputError.at(path, None, f"no column {', '.join(absent)}")
        self._length: int = table.num_rows
        # Left in chunks: joined, offsets of 4 bytes would end at 2 GiB of text in one column.
        self._arrays: list[Any] = [table.column(name) for name in names]

    def __len__(self) -> int:
        return self._length

    def __getitem__(self, row: int) -> tuple[str, ...]:
        return tuple(array[row].as_py() for array in self._arrays)

    def column(self, number: int) -> list[str]:
        """One whole column."""
        values: list[str] = self._arrays[number].to_pylist()
        return values

    @property
    def nbytes(self) -> int:
        """Bytes of all values and offsets, mapped or in memory."""
        return sum(int(array.nbytes) for array in self._arrays)


def _table(path: Path, names: Sequence[str]) -> Any:
    import pyarrow as pa
    import pyarrow.parquet as pq

    if _kind(path) == "Parquet":
        return pq.read_table(path, columns=list(names))
    with pa.memory_map(str(path)) as source:
        return pa.ipc.open_file(source).read_all()


def _kind(path: Path) -> str:
    return "Arrow" if path.suffix == ".arrow" else "Parquet"


def best(scores_N: NDArray[np.floating], k: int) -> NDArray[np.int64]:
    """Positions of the k highest scores, best first, ties by position."""
    if len(scores_N) > 4 * k:
        threshold = np.partition(scores_N, len(scores_N) - k)[len(scores_N) - k]
        kept = np.flatnonzero(scores_N >= threshold)
    else:
        kept = np.arange(len(scores_N))
    order: NDArray[np.int64] = kept[np.argsort(-scores_N[kept], kind="stable")][:k]
    return order


def check_rows(name: str, found: int, expected: int, where: Path) -> None:
    """Raise StoreError when an index and its table have different numbers of rows."""
    if found != expected:
        raise StoreError(
            f"{where}: {name} has {found} rows, its table has {expected}; run the index stage again"
        )
