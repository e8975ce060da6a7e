"""The graph's tables on disk, written while triplets arrive.

Purpose: a graph of any size with bounded memory. Input: `Edge`s, then the entities. Output:
``triplets.parquet`` and ``entities.parquet`` (id = row, key, name) for people and later stages; the
same rows uncompressed in ``triplets.arrow`` and ``entities.arrow`` (names), which retrieval maps into
memory; and ``neighbours/`` (which triplets touch an entity, `pipeline.retrieval.neighbours`). Memory:
one block of triplets, and 8 bytes per entity at the end; heads and tails wait on disk until all are
there.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Iterator
from itertools import islice
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from pipeline.graph.build import Edge
from pipeline.graph.entities import EntityTable
from pipeline.records import Triplet
from pipeline.retrieval.neighbours import write_neighbours

BLOCK = 1 << 16  # triplets per row group and record batch: about 50 MB of Python objects
_NAMES = [field.name for field in dataclasses.fields(Triplet)]


def write_triplets(
    folder: Path, edges: Iterable[Edge], entities: EntityTable, block: int = BLOCK
) -> int:
    """Write all tables of a graph into ``folder``; returns how many triplets.

    ``entities`` may still grow while the edges are drawn; it is read after the last of them.
    """
    import pyarrow as pa
    import pyarrow.parquet as pq

    schema = pa.schema([(name, pa.string()) for name in _NAMES])
    ends = folder / "ends.tmp"
    count = 0
    with (
        pq.ParquetWriter(folder / "triplets.parquet", schema, compression="zstd") as packed,
        pa.OSFile(str(folder / "triplets.arrow"), "wb") as file,
        pa.ipc.new_file(file, schema) as plain,
        ends.open("wb") as numbers,
    ):
        left = iter(edges)
        while part := list(islice(left, block)):
            columns = {name: [getattr(edge.triplet, name) for edge in part] for name in _NAMES}
            table = pa.table(columns, schema=schema)
            packed.write_table(table)
            plain.write_table(table)
            np.array([(edge.head, edge.tail) for edge in part], dtype=np.int64).tofile(numbers)
            count += len(part)
    write_entities(folder, entities, block)
    write_neighbours(folder / "neighbours", lambda: _read_ends(ends, 8 * block), len(entities))
    ends.unlink()
    return count


def _read_ends(path: Path, count: int) -> Iterator[NDArray[np.int64]]:
    with path.open("rb") as file:
        while len(part := np.fromfile(file, dtype=np.int64, count=2 * count)):
            yield part.reshape(-1, 2)


def write_entities(folder: Path, entities: EntityTable, block: int) -> None:
    """Write ``entities.parquet`` and ``entities.arrow``."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    schema = pa.schema([("id", pa.int64()), ("key", pa.string()), ("name", pa.string())])
    mapped = pa.schema([("name", pa.string())])
    with (
        pq.ParquetWriter(folder / "entities.parquet", schema, compression="zstd") as packed,
        pa.OSFile(str(folder / "entities.arrow"), "wb") as file,
        pa.ipc.new_file(file, mapped) as plain,
    ):
        for start in range(0, len(entities), block):
            rows = slice(start, start + block)
            keys, names = entities.keys[rows], entities.names[rows]
            columns = {"id": range(start, start + len(keys)), "key": keys, "name": names}
            packed.write_table(pa.table(columns, schema=schema))
            plain.write_table(pa.table({"name": names}, schema=mapped))
