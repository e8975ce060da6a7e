"""The tables of a graph agree for every block size."""

from pathlib import Path

import pyarrow.parquet as pq
import pytest

from pipeline.core.columns import Columns
from pipeline.core.record_io import read_records
from pipeline.core.records import Triplet
from pipeline.knowledge.graph.adjacency import Adjacency
from pipeline.knowledge.graph.build import Extracted, Graph
from pipeline.knowledge.graph.tables import write_triplets

TRIPLES = [["Ann", "born in", "Rome"], ["rome", "lies in", "Italy"], ["Rome", "is", '"Rome"']]
NAMES = ("id", "head", "relation", "tail", "chunk_id")


@pytest.mark.parametrize("block", [1, 2, 100])
def test_arrow_adjacency_and_parquet_agree_for_every_block_size(tmp_path: Path, block: int) -> None:
    graph = Graph()
    edges = graph.edges([Extracted("c", "T", triple) for triple in TRIPLES])
    assert write_triplets(tmp_path, edges, graph.entities, block) == 3
    records = read_records(tmp_path / "triplets.parquet", Triplet)
    assert records[1] == Triplet("c:1", "rome", "lies in", "Italy", "c")
    columns = Columns(tmp_path / "triplets.arrow", NAMES)
    assert [columns[row] for row in range(3)] == [
        (triplet.id, triplet.head, triplet.relation, triplet.tail, triplet.chunk_id)
        for triplet in records
    ]
    assert pq.read_table(tmp_path / "entities.parquet").to_pylist() == [
        {"id": 0, "key": "ann", "name": "Ann"},
        {"id": 1, "key": "rome", "name": "Rome"},
        {"id": 2, "key": "italy", "name": "Italy"},
    ]
    rows_of_entities = Adjacency.load(tmp_path / "neighbours").union([[0], [1], [2]])
    assert [rows.tolist() for rows in rows_of_entities] == [[0], [0, 1, 2], [1]]
    names = Columns(tmp_path / "entities.arrow", ("name",))
    assert [names[row] for row in range(len(names))] == [("Ann",), ("Rome",), ("Italy",)]
