"""Checkpoint files: Parquet or NumPy files whose names end in a hash of their content.

A stage writes a file once and reads it after a kill, or when it joins its parts. A file whose
content does not have the hash in its name is damaged: `intact` deletes it with a line in the log,
so that the stage makes its content again.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pipeline.core.atomic import parquet_writer, save_array
from pipeline.core.errors import StoreError
from pipeline.core.model_files import sha256
from pipeline.core.record_io import ROWS_PER_GROUP, arrow_schema, write_parquet

if TYPE_CHECKING:
    import pyarrow as pa
    from numpy.typing import NDArray

_HASH_CHARACTERS = 32


def write_checkpoint(
    folder: Path,
    name: str,
    records: Iterable[Any],
    kind: type[Any],
    types: Mapping[str, Any] | None = None,
) -> Path:
    """Write records to ``<name>-<hash>.parquet``; a file with the same content is replaced."""
    temporary = folder / f".{name}.{os.getpid()}.parquet"
    write_parquet(temporary, records, kind, types)
    return _named_by_hash(temporary, name)


def save_array_checkpoint(folder: Path, name: str, array: NDArray[Any]) -> Path:
    """Write an array to ``<name>-<hash>.npy``; a file with the same content is replaced."""
    temporary = folder / f".{name}.{os.getpid()}.npy"
    save_array(temporary, array)
    return _named_by_hash(temporary, name)


def intact(folder: Path, name: str, suffix: str = ".parquet") -> list[Path]:
    """The checkpoints called ``name``, sorted; damaged ones are deleted."""
    paths = []
    for path in sorted(folder.glob(f"{name}-{'?' * _HASH_CHARACTERS}{suffix}")):
        if path.stem.endswith(f"-{_hash(path)}"):
            paths.append(path)
        else:
            logging.getLogger(__name__).warning(
                "%s is damaged: its content does not have the hash in its name; "
                "it is deleted, and its content is made again",
                path,
            )
            path.unlink()
    return paths


def read_checkpoint(path: Path, columns: list[str] | None = None) -> pa.Table:
    """The table of a checkpoint, or some of its columns.

    Raises StoreError when the file was deleted or damaged after the stage listed it.
    """
    import pyarrow.parquet as pq

    try:
        whole = path.stem.endswith(f"-{_hash(path)}")
    except OSError as error:
        raise StoreError(
            f"{path}: the checkpoint cannot be read any more ({error.strerror}); check that no "
            "other process uses the directory, then rerun, which makes its content again"
        ) from None
    if not whole:
        raise StoreError(
            f"{path}: the checkpoint was damaged while the stage ran; check the disk, then rerun, "
            "which makes its content again"
        )
    return pq.read_table(path, columns=columns)


def write_tables(
    path: Path,
    tables: Iterable[pa.Table],
    kind: type[Any],
    types: Mapping[str, Any] | None = None,
) -> int:
    """Join tables of records of type ``kind`` into one file; returns the number of rows.

    The row groups are divided as in `write_parquet`, so the bytes depend on the rows only and not
    on the division into tables.
    """
    import pyarrow as pa

    schema = arrow_schema(kind, types)
    count, pending = 0, schema.empty_table()
    with parquet_writer(path, schema) as writer:
        for table in tables:
            count += table.num_rows
            pending = pa.concat_tables([pending, table.cast(schema)])
            while pending.num_rows >= ROWS_PER_GROUP:
                writer.write_table(pending.slice(0, ROWS_PER_GROUP).combine_chunks())
                pending = pending.slice(ROWS_PER_GROUP)
        if pending.num_rows:  # `datasets` cannot load a row group without rows
            writer.write_table(pending.combine_chunks())
    return count


def _named_by_hash(temporary: Path, name: str) -> Path:
    path = temporary.with_name(f"{name}-{_hash(temporary)}{temporary.suffix}")
    temporary.replace(path)
    return path


def _hash(path: Path) -> str:
    return sha256(path)[:_HASH_CHARACTERS]
