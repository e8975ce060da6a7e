"""Single records of a run: a trajectory, a pair, a chunk, a triplet, a judge's call.

Input: a file of the run, and a row or an id. Output: the record. Only the requested row is decoded,
so that a page over 100,000 trajectories costs as little as a page over ten.
"""

from __future__ import annotations

from functools import lru_cache
from pathlib import Path
from typing import Any, TypeVar

from pipeline.browse.index import duckdb
from pipeline.browse.sources import CALLS, RunSources
from pipeline.core.columns import Records
from pipeline.core.errors import InputError, StoreError
from pipeline.core.input_files import parquet_rows
from pipeline.core.record_io import from_arrow, parse_record
from pipeline.core.records import Chunk, Pair, Trajectory, Triplet

R = TypeVar("R", Trajectory, Pair)


def read_row(path: Path, row: int, kind: type[R]) -> R | None:
    """The record in row ``row`` (from 0) of a Parquet file, or None.

    Raises StoreError when the file cannot be read or the record does not fit ``kind``.
    """
    try:
        found = next(parquet_rows(path, [row]), None)
        record = None if found is None else from_arrow(found, kind)
        return None if record is None else parse_record(kind, record, path, row + 1)
    except InputError as error:
        raise StoreError(str(error)) from None


def read_call(judged: Path, key: str) -> dict[str, Any] | None:
    """The call of a judge with its prompt and reply, by its content key, or None."""
    path = judged / CALLS
    if not path.is_file():
        return None
    found = _select("SELECT * FROM read_parquet(?) WHERE key = ?", [str(path), key])
    return found[0] if found else None


def _select(sql: str, values: list[Any]) -> list[dict[str, Any]]:
    library = duckdb()
    try:
        with library.connect() as connection:
            cursor = connection.execute(sql, values)
            names = [column[0] for column in cursor.description]
            return [dict(zip(names, row, strict=True)) for row in cursor.fetchall()]
    except library.Error as error:
        raise StoreError(f"{values[0]}: {str(error).splitlines()[0]}") from None


class Knowledge:
    """Passages and facts of a run, by id; None or empty if the run has none."""

    def __init__(self, sources: RunSources) -> None:
        self._sources = sources

    def chunk(self, chunk_id: str) -> Chunk | None:
        """The passage with this id."""
        path = _table(self._sources.corpus, "chunks")
        found = [] if path is None else _records(path, Chunk).where("id", [chunk_id])
        return found[0] if found else None

    def triplet(self, triplet_id: str) -> Triplet | None:
        """The fact with this id."""
        path = _table(self._sources.graph, "triplets")
        found = [] if path is None else _records(path, Triplet).where("id", [triplet_id])
        return found[0] if found else None

    def triplets_of(self, chunk_id: str) -> list[Triplet]:
        """The facts that were extracted from a passage."""
        path = _table(self._sources.graph, "triplets")
        return [] if path is None else _records(path, Triplet).where("chunk_id", [chunk_id])

    def hyperedges_of(self, chunk_id: str) -> list[dict[str, Any]]:
        """The n-ary facts of a passage: id, text and entities."""
        return self._hyperedges("chunk_id", chunk_id)

    def hyperedge(self, edge_id: str) -> dict[str, Any] | None:
        """The n-ary fact with this id."""
        return next(iter(self._hyperedges("id", edge_id)), None)

    def _hyperedges(self, column: str, value: str) -> list[dict[str, Any]]:
        path = _table(self._sources.hypergraph, "hyperedges")
        if path is None or path.suffix != ".parquet":
            return []
        return _select(f"SELECT * FROM read_parquet(?) WHERE {column} = ?", [str(path), value])


def _table(directory: Path | None, name: str) -> Path | None:
    """The table as a memory-mapped file if there is one, else as Parquet."""
    if directory is None:
        return None
    suffixes = (".parquet",) if name == "hyperedges" else (".arrow", ".parquet")
    paths = [directory / f"{name}{suffix}" for suffix in suffixes]
    return next((path for path in paths if path.is_file()), None)


@lru_cache(maxsize=8)
def _records(path: Path, kind: type[Any]) -> Records[Any]:
    return Records(path, kind)
