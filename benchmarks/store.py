"""Row ``store``: triplets one hop from five entities, against SQLite and DuckDB.

Work: the second stage of graph retrieval (TeaRAG, arXiv 2511.05385, 4.2.3) looks up the rows of all
triplets that touch one of a query's entities, in order and without duplicates. Queries come in
batches of subqueries, as in retrieval, or one at a time; the row names the mode. The databases
receive a batch as a table to join with. Both databases are in memory: SQLite holds one table of
ends that is clustered by entity (``WITHOUT ROWID``), DuckDB the triplets with one index over heads
and one over tails. Our files are memory-mapped. Entities are drawn uniformly. This is the harder
case for our code, because with few rows per query the fixed cost of a query dominates.

The graph is generated: degrees follow a power law around the paper's mean of 5.13, and texts are as
long as in the MuSiQue triples. The writer of the graph stage stores it.
"""

from __future__ import annotations

import json
import sqlite3
import sys
import tempfile
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from benchmarks.measured_process import Measured, run_measured
from benchmarks.peers import Missing, peer, version
from benchmarks.timing import Row, alternate, per
from pipeline.core.columns import Columns
from pipeline.core.records import Triplet
from pipeline.knowledge.graph.adjacency import Adjacency
from pipeline.knowledge.graph.build import Extracted, Graph
from pipeline.knowledge.graph.entities import EntityTable
from pipeline.knowledge.graph.tables import write_triplets

MEAN_DEGREE = 5.13  # TeaRAG table 5: ends of triplets per entity
QUERY = 5  # entities
BATCH = 64  # subqueries per call of the sampler
_QUERIES = 1_024
_COLUMNS = ("id", "head", "relation", "tail", "chunk_id")
_RELATIONS = 5_000
_PER_CHUNK = 6
_DRAWN = 1 << 16
Ends = NDArray[np.int64]
Rows = list[list[int]]  # rows of triplets per query
Queries = list[list[int]]


def rows(sizes: list[int], repeats: int, missing: Missing) -> list[Row]:
    """Tables of each size against both databases, in batches and query by query, and their memory.

    DuckDB is left out if it is not installed. Raises AssertionError when answers differ.
    """
    result = []
    for size in sizes:
        with tempfile.TemporaryDirectory(prefix="graph-store-") as name:
            result += _size_rows(Path(name), size, repeats, missing)
    return result


def _size_rows(folder: Path, size: int, repeats: int, missing: Missing) -> list[Row]:
    built = build_in_process(folder, size)
    neighbours = Adjacency.load(folder / "neighbours")
    ends_T2 = np.concatenate(list(ends(size)))
    rng = np.random.default_rng(1)
    queries = rng.integers(0, neighbours.num_keys, (_QUERIES, QUERY)).tolist()
    # How each side answers a batch of queries, and how a single query.
    sides: dict[str, tuple[Callable[[Queries], Any], Callable[[list[int]], Any]]] = {
        "ours": (neighbours.union, lambda query: neighbours.union([query])[0])
    }
    sqlite = _sqlite(ends_T2)
    sides[f"SQLite {sqlite3.sqlite_version}"] = (
        partial(_sqlite_batch, sqlite), partial(_sqlite_one, sqlite)
    )  # fmt: skip
    if missing.has("duckdb"):
        duckdb = _duckdb(ends_T2)
        sides[f"DuckDB {version('duckdb')}"] = (
            partial(_duckdb_batch, duckdb), partial(_duckdb_one, duckdb)
        )  # fmt: skip
    batched = {name: partial(_in_batches, batch, queries) for name, (batch, _) in sides.items()}
    single = {name: partial(_one_by_one, one, queries) for name, (_, one) in sides.items()}
    graph = f"{size:,} triplets, {neighbours.num_keys:,} entities"
    result = []
    for mode, contenders in ((f"batches of {BATCH} queries", batched), ("query by query", single)):
        expected = contenders["ours"]()
        for name, answers in contenders.items():
            assert answers() == expected, f"{name} finds other triplets among {size}"
        work = f"{graph}, {mode}, {sum(map(len, expected)) / _QUERIES:.1f} rows each"
        microseconds = {
            name: per(seconds, _QUERIES) for name, seconds in alternate(contenders, repeats).items()
        }
        ours = microseconds.pop("ours")
        result += [
            Row("store", work, name, ours, theirs, "µs per query", goal="≥ 5")
            for name, theirs in microseconds.items()
        ]
    return [*result, _memory(folder, size, built)]


def _memory(folder: Path, size: int, built: dict[str, Any]) -> Row:
    columns = Columns(folder / "triplets.arrow", _COLUMNS)
    neighbours = Adjacency.load(folder / "neighbours")
    offsets = 4 * len(_COLUMNS) * size
    raw = columns.nbytes - offsets
    ours = columns.nbytes + neighbours.nbytes
    return Row(
        "store",
        f"{size:,} triplets: columns and neighbours, mapped, against the bytes of the texts alone",
        "raw columns",
        [ours / size],
        [raw / size],
        "bytes per triplet",
        goal="< 1.5",
        ours_over_peer=True,
        details=built,
    )


def build_in_process(folder: Path, size: int, *, numbered: bool = True) -> dict[str, Any]:
    """Build the tables in a separate process; returns the figures of `measured_process`.

    Builds take too long to alternate, so they are compared by CPU seconds. With ``numbered`` the
    entities already have numbers, and only the writing of the tables is measured. Without it,
    triples are checked and entities numbered as in the graph stage, whose entity table is in
    memory.
    """
    mode = "numbered" if numbered else "whole"
    return run_measured("benchmarks.store", folder, size, mode)


class NumberedEntities(EntityTable):
    """An entity table that generates keys and names on access.

    The table of the stage holds a dictionary of all entities, which would dominate the measured
    memory.
    """

    def __init__(self, count: int) -> None:
        super().__init__()
        self._count = count
        self.keys = self.names = _Names(count)

    def __len__(self) -> int:
        return self._count


class _Names(list[str]):
    def __init__(self, count: int) -> None:
        super().__init__()
        self._count = count

    def __getitem__(self, rows: Any) -> Any:
        return [_name(row) for row in range(self._count)[rows]]


def entity_count(triplets: int) -> int:
    """The number of entities of a graph with the paper's mean degree."""
    return max(2, round(2 * triplets / MEAN_DEGREE))


def ends(triplets: int) -> Iterator[Ends]:
    """Heads and tails [n, 2] in blocks; equal arguments give equal blocks.

    Half of the ends are drawn uniformly, half by a power law (density of rank r as r^-0.6), so that
    a few entities, like countries and years, occur in a large part of the graph.
    """
    entities = entity_count(triplets)
    rng = np.random.default_rng(0)
    for start in range(0, triplets, _DRAWN):
        count = min(_DRAWN, triplets - start)
        even = rng.integers(0, entities, (count, 2))
        skewed = (entities * rng.random((count, 2)) ** 2.5).astype(np.int64)
        # Ranks are spread over all numbers, so that hubs are not adjacent in the file.
        skewed = (skewed * 1_000_003 + 17) % entities
        yield np.where(rng.random((count, 2)) < 0.5, even, skewed)


def edges(triplets: int) -> Iterator[tuple[Triplet, tuple[int, ...]]]:
    """The triplets of `ends` with texts, as the graph stage reads them."""
    row = 0
    for block in ends(triplets):
        for head, tail in block.tolist():
            chunk, place = divmod(row, _PER_CHUNK)
            name = f"c{chunk:08d}"
            relation = f"relation {(row * 7919) % _RELATIONS}"
            triplet = Triplet(f"{name}:{place}", _name(head), relation, _name(tail), name)
            yield triplet, tuple(dict.fromkeys((head, tail)))
            row += 1


def _extracted(triplets: int) -> Iterator[Extracted]:
    for triplet, _ in edges(triplets):
        parts = [triplet.head, triplet.relation, triplet.tail]
        yield Extracted(triplet.chunk_id, "", parts)


def _name(entity: int) -> str:
    return f"entity {entity:09d}"


def _in_batches(search: Callable[[Queries], Any], queries: Queries) -> Rows:
    answers: Rows = []
    for start in range(0, len(queries), BATCH):
        batch = search(queries[start : start + BATCH])
        answers += [rows if isinstance(rows, list) else rows.tolist() for rows in batch]
    return answers


def _one_by_one(search: Callable[[list[int]], Any], queries: Queries) -> Rows:
    answers = map(search, queries)
    return [rows if isinstance(rows, list) else rows.tolist() for rows in answers]


def _sqlite(ends_T2: Ends) -> sqlite3.Connection:
    connection = sqlite3.connect(":memory:")
    connection.execute(
        "CREATE TABLE ends (entity INT, number INT, PRIMARY KEY (entity, number)) WITHOUT ROWID"
    )
    rows = sorted({(end, number) for number, both in enumerate(ends_T2.tolist()) for end in both})
    connection.executemany("INSERT INTO ends VALUES (?, ?)", rows)
    connection.execute("CREATE TEMP TABLE queries (query INT, entity INT)")
    connection.execute("ANALYZE")
    return connection


def _sqlite_one(connection: sqlite3.Connection, query: list[int]) -> list[int]:
    marks = ",".join("?" * len(query))
    rows = connection.execute(
        f"SELECT DISTINCT number FROM ends WHERE entity IN ({marks}) ORDER BY 1", query
    )
    return [number for (number,) in rows]


def _sqlite_batch(connection: sqlite3.Connection, queries: Queries) -> Rows:
    connection.execute("DELETE FROM queries")
    connection.executemany("INSERT INTO queries VALUES (?, ?)", _query_entities(queries))
    rows = connection.execute(
        # CROSS JOIN keeps SQLite from scanning the ends and looking each up in the queries.
        "SELECT DISTINCT query, number FROM queries CROSS JOIN ends USING (entity) ORDER BY 1, 2"
    )
    return _grouped(rows, len(queries))


def _duckdb(ends_T2: Ends) -> Any:
    connection = peer("duckdb").connect(":memory:")
    connection.execute("SET threads = 1")
    import pyarrow as pa

    table = pa.table(
        {"number": np.arange(len(ends_T2)), "head": ends_T2[:, 0], "tail": ends_T2[:, 1]}
    )
    connection.register("arrived", table)
    connection.execute("CREATE TABLE triplets AS SELECT * FROM arrived")
    connection.unregister("arrived")
    connection.execute("CREATE INDEX heads ON triplets (head)")
    connection.execute("CREATE INDEX tails ON triplets (tail)")
    return connection


def _duckdb_one(connection: Any, query: list[int]) -> list[int]:
    entities = ",".join(map(str, query))
    rows = connection.execute(
        f"SELECT number FROM triplets WHERE head IN ({entities}) UNION "
        f"SELECT number FROM triplets WHERE tail IN ({entities}) ORDER BY 1"
    ).fetchall()
    return [number for (number,) in rows]


def _duckdb_batch(connection: Any, queries: Queries) -> Rows:
    import pyarrow as pa

    query_N, entity_N = zip(*_query_entities(queries), strict=True)
    connection.register("queries", pa.table({"query": query_N, "entity": entity_N}))
    rows = connection.execute(
        "SELECT query, number FROM queries JOIN triplets ON head = entity UNION "
        "SELECT query, number FROM queries JOIN triplets ON tail = entity ORDER BY 1, 2"
    ).fetchall()
    return _grouped(rows, len(queries))


def _query_entities(queries: Queries) -> list[tuple[int, int]]:
    return [(number, entity) for number, query in enumerate(queries) for entity in query]


def _grouped(rows: Any, count: int) -> Rows:
    grouped: Rows = [[] for _ in range(count)]
    for query, number in rows:
        grouped[query].append(number)
    return grouped


def _build(folder: Path, triplets: int, *, numbered: bool) -> None:
    import pyarrow as pa
    import pyarrow.parquet as pq

    assert pa
    assert pq
    folder.mkdir(parents=True, exist_ok=True)
    with Measured() as spent:
        entities: EntityTable = NumberedEntities(entity_count(triplets))
        arriving = edges(triplets)
        if not numbered:
            graph = Graph()
            entities, arriving = graph.entities, graph.edges(_extracted(triplets))
        write_triplets(folder, arriving, entities)
    print(json.dumps({**spent.figures, "entities": len(entities)}))


if __name__ == "__main__":
    _build(Path(sys.argv[1]), int(sys.argv[2]), numbered=sys.argv[3] == "numbered")
