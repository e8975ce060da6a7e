"""The hypergraph: tables, facts from triplets and annotations, and the stage over real files."""

from __future__ import annotations

import json
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from pipeline.core.columns import Columns
from pipeline.core.errors import InputError
from pipeline.core.record_io import read_records
from pipeline.core.records import Chunk, Hyperedge, Triplet
from pipeline.knowledge.graph.adjacency import Adjacency
from pipeline.knowledge.graph.build import Extracted
from pipeline.knowledge.graph.facts import Facts
from pipeline.knowledge.graph.sources import group_triplets, read_annotated_facts
from pipeline.knowledge.graph.tables import HYPEREDGE_COLUMNS, write_hyperedges

CONFIGS = Path(__file__).parents[2] / "configs"
FACTS = [
    ["Ann left Rome for Oslo.", ["Ann", "Rome", "Oslo"]],
    ["Rome is old.", ["rome", "old"]],
    ["Ann is old.", ["old", "Ann"]],
]


@pytest.mark.parametrize("block", [1, 2, 100])
def test_hypergraph_tables_give_the_incidence_in_both_directions(
    tmp_path: Path, block: int
) -> None:
    facts = Facts()
    edges = facts.edges([Extracted("c", "T", fact) for fact in FACTS])
    assert write_hyperedges(tmp_path, edges, facts.entities, block) == 3
    records = read_records(tmp_path / "hyperedges.parquet", Hyperedge)
    assert records[1] == Hyperedge("c:f1", "Rome is old.", ["rome", "old"], "c")
    columns = Columns(tmp_path / "hyperedges.arrow", HYPEREDGE_COLUMNS)
    assert [columns[row] for row in range(3)] == [
        (record.id, record.text, record.chunk_id) for record in records
    ]
    names = Columns(tmp_path / "entities.arrow", ("name",)).column(0)
    assert names == ["Ann", "Rome", "Oslo", "old"]
    entities = pq.read_table(tmp_path / "entities.parquet").to_pylist()
    assert entities[1] == {"id": 1, "key": "rome", "name": "Rome"}
    members = Adjacency.load(tmp_path / "members").union([[0], [1], [2]])
    assert [rows.tolist() for rows in members] == [[0, 1, 2], [1, 3], [0, 3]]
    neighbours = Adjacency.load(tmp_path / "neighbours").union([[0], [1], [2], [3]])
    assert [rows.tolist() for rows in neighbours] == [[0, 2], [0, 1], [0], [1, 2]]
    assert not (tmp_path / "ends.tmp").exists()


def test_triplets_of_one_sentence_make_one_fact() -> None:
    chunks = [Chunk("c", "Ann", "Ann was born in Rome in 1900. She died in Oslo.", "d")]
    triplets = [
        Triplet("c:0", "Ann", "died in", "Oslo", "c"),
        Triplet("c:1", "Ann", "was born in", "Rome", "c"),
        Triplet("c:2", "Ann", "was born in", "1900", "c"),
        Triplet("c:3", "Q1", "P2", "Q3", "c"),
    ]
    assert [item.value for item in group_triplets(triplets, chunks)] == [
        ["Ann was born in Rome in 1900.", ["Ann", "Rome", "Ann", "1900"]],
        ["Ann: She died in Oslo.", ["Ann", "Oslo"]],
        ["Q1 P2 Q3", ["Q1", "Q3"]],
    ]


def test_annotated_facts_are_placed_in_the_chunk_of_their_sentence(tmp_path: Path) -> None:
    chunks = [Chunk("d-0", "T", "Ann left.", "d"), Chunk("d-1", "T", "Bo met Ann.", "d")]
    path = tmp_path / "facts.jsonl"
    rows = [
        {"text": "Bo met Ann.", "entities": ["Bo", "Ann"], "doc_id": "d"},
        {"text": "Elsewhere.", "entities": ["A", "B"], "doc_id": "e"},
    ]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    hyperedges = list(read_annotated_facts(path, chunks))
    assert hyperedges == [
        Extracted("d-1", "", ["Bo met Ann.", ["Bo", "Ann"]]),
        Extracted(None, "", ["Elsewhere.", ["A", "B"]], "document not in the corpus"),
    ]
    path.write_text(json.dumps({"text": "Bo.", "entities": ["Bo", 7], "doc_id": "d"}) + "\n")
    with pytest.raises(
        InputError, match=r"facts\.jsonl:1: entities\.1: expected a non-empty string"
    ):
        list(read_annotated_facts(path, chunks))
