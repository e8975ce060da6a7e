"""Tables of the graph and the hypergraph, written in blocks so that memory stays bounded.

Input: triplets (`graph.build`) or hyperedges (`graph.facts`) with the numbers of their entities as
they arrive, then the entities. Output
per table: ``<name>.parquet`` with all columns, for later stages and for people, and
``<name>.arrow`` with the columns that retrieval memory-maps.

==================  ======================================================================
graph (TeaRAG 4.1)  ``triplets``, ``entities`` (id = row, key, name), and ``neighbours/``:
                    the triplets of each entity
hypergraph          ``hyperedges``, ``entities``, ``neighbours/``: the hyperedges of each
(ProGraph-R1 3.1)   entity, and ``members/``: the entities of each hyperedge
==================  ======================================================================

The directories are CSR tables (`graph.adjacency`). Memory: one block of rows, and at the end 8
bytes per entity and per hyperedge; entity numbers wait in a temporary file until all rows are
written.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Iterable, Iterator
from itertools import islice
from pathlib import Path

import numpy as np

from pipeline.core.atomic import open_table
from pipeline.core.records import Hyperedge, Triplet
from pipeline.knowledge.graph.adjacency import KeyedRows, write_csr
from pipeline.knowledge.graph.entities import EntityTable

BLOCK = 1 << 16  # rows per row group and record batch: about 50 MB of Python objects
MEMBERS, NEIGHBOURS = "members", "neighbours"  # directories of the CSR tables
HYPEREDGE_COLUMNS = ("id", "text", "chunk_id")  # of hyperedges.arrow
Row = tuple[Triplet | Hyperedge, Iterable[int]]  # a record and the numbers of its entities
_NUMBERS = "ends.tmp"  # pairs (row, entity) of the rows written so far


def write_triplets(
    folder: Path, edges: Iterable[Row], entities: EntityTable, block: int = BLOCK
) -> int:
    """Write all tables of a graph into ``folder`` and return the number of triplets.

    ``entities`` may grow while ``edges`` is consumed; it is read after the last edge.
    """
    return _write(folder, "triplets", Triplet, edges, entities, block)


def write_hyperedges(
    folder: Path, facts: Iterable[Row], entities: EntityTable, block: int = BLOCK
) -> int:
    """Write all tables of a hypergraph into ``folder`` and return the number of hyperedges.

    ``entities`` may grow while ``facts`` is consumed; it is read after the last fact.
    """
    return _write(folder, "hyperedges", Hyperedge, facts, entities, block)


def _write(
    folder: Path,
    name: str,
    kind: type[Triplet | Hyperedge],
    rows: Iterable[Row],
    entities: EntityTable,
    block: int,
) -> int:
    """Write records to a table, and the distinct entities of each to a file of numbers, which
    becomes the CSR tables."""
    import pyarrow as pa

    columns = [field.name for field in dataclasses.fields(kind)]
    texts = [column for column in columns if column != "entities"]
    schema = pa.schema([(c, pa.string() if c in texts else pa.list_(pa.string())) for c in columns])
    count, remaining = 0, iter(rows)
    with (
        open_table(folder, name, schema, texts) as write,
        (folder / _NUMBERS).open("wb") as numbers,
    ):
        while part := list(islice(remaining, block)):
            write({column: [getattr(record, column) for record, _ in part] for column in columns})
            pairs = [(row, end) for row, (_, ends) in enumerate(part, count) for end in ends]
            np.array(pairs, dtype=np.int64).tofile(numbers)
            count += len(part)
    write_entities(folder, entities, block)

    def by_entity() -> Iterator[KeyedRows]:
        return ((entity_M, row_M) for row_M, entity_M in _read_numbers(folder, block))

    if kind is Hyperedge:
        write_csr(folder / MEMBERS, lambda: _read_numbers(folder, block), count)
    write_csr(folder / NEIGHBOURS, by_entity, len(entities))
    (folder / _NUMBERS).unlink()
    return count


def read_hyperedges(folder: Path, chunks: Collection[str]) -> list[Hyperedge]:
    """The hyperedges of the chunks with these ids, in the order of the table."""
    import pyarrow as pa
    import pyarrow.dataset as ds

    wanted = ds.field("chunk_id").isin(pa.array(sorted(chunks), pa.string()))
    table = ds.dataset(folder / "hyperedges.parquet").to_table(filter=wanted)
    return [Hyperedge(**row) for row in table.to_pylist()]


def write_entities(folder: Path, entities: EntityTable, block: int) -> None:
    """Write ``entities.parquet`` (id, key, name) and ``entities.arrow`` (name)."""
    import pyarrow as pa

    schema = pa.schema([("id", pa.int64()), ("key", pa.string()), ("name", pa.string())])
    with open_table(folder, "entities", schema, ["name"]) as write:
        for start in range(0, len(entities), block):
            rows = slice(start, start + block)
            keys, names = entities.keys[rows], entities.names[rows]
            write({"id": range(start, start + len(keys)), "key": keys, "name": names})


def _read_numbers(folder: Path, block: int) -> Iterator[KeyedRows]:
    """Blocks of rows and their entities from the file of numbers."""
    with (folder / _NUMBERS).open("rb") as file:
        while len(part := np.fromfile(file, dtype=np.int64, count=8 * block)):
            yield part[::2], part[1::2]
