"""N-ary facts become hyperedges; malformed ones are counted by reason."""

from pathlib import Path
from typing import Any

import pytest

from pipeline.core.record_io import read_records, write_parquet
from pipeline.core.records import Hyperedge
from pipeline.knowledge.graph.build import Extracted
from pipeline.knowledge.graph.facts import Facts

BORN = ["Ann was  born in Rome in 1900.", ["Ann", "Rome", "1900", '"ann"']]


def test_hyperedge_keeps_sentence_entities_and_chunk(tmp_path: Path) -> None:
    facts = Facts()
    edges = facts.edges(
        [
            Extracted("c1", "T", BORN),
            Extracted("c2", "T", BORN),
            Extracted("c1", "T", ["Rome is old.", ["Rome", "old"]]),
            Extracted("c1", "T", ["ann was born in rome in 1900.", ["1900", "ROME", "Ann"]]),
        ]
    )
    hyperedges = [hyperedge for hyperedge, _ in edges]
    assert hyperedges == [
        Hyperedge("c1:f0", "Ann was born in Rome in 1900.", ["Ann", "Rome", "1900"], "c1"),
        Hyperedge("c2:f0", "Ann was born in Rome in 1900.", ["Ann", "Rome", "1900"], "c2"),
        Hyperedge("c1:f1", "Rome is old.", ["Rome", "old"], "c1"),
    ]
    assert facts.entities.names == ["Ann", "Rome", "1900", "old"]
    # 3 + 3 + 2 ends of hyperedges meet in 4 entities; Rome has 3 of them.
    assert facts.statistics() == {
        "entities": 4,
        "hyperedges": 3,
        "arity_mean": 2.6667,
        "arity_max": 3,
        "degree_mean": 2.0,
        "degree_max": 3,
        "chunks_with_hyperedges": 2,
        "duplicates": 1,
        "rejects": 0,
    }
    write_parquet(tmp_path / "hyperedges.parquet", hyperedges, Hyperedge)
    assert read_records(tmp_path / "hyperedges.parquet", Hyperedge) == hyperedges


@pytest.mark.parametrize(
    ("value", "reason"),
    [
        ("Ann sings.", "not a list"),
        (["Ann sings."], "length 1"),
        (["Ann sings Emma.", "Ann"], "entities are not a list"),
        ([None, ["Ann", "Emma"]], "fact is not a string"),
        (["x" * 1001, ["Ann", "Emma"]], "fact is over-long"),
        (["Ann sings Emma.", ["Ann", 7]], "entity is not a string"),
        (["Ann sings Emma.", ["Ann", "Em\x00ma"]], "entity has control characters"),
        (["Ann sings.", ["Ann", "ANN", "'Ann'"]], "fewer than two entities"),
    ],
)
def test_rejects_keep_their_reason(value: Any, reason: str) -> None:
    facts = Facts()
    hyperedges = list(facts.edges([Extracted("c", "T", value), Extracted("c", "T", BORN)]))
    assert [(item.chunk_id, item.reason, item.value) for item in facts.rejects] == [
        ("c", reason, value)
    ]
    assert facts.statistics()[f"rejects: {reason}"] == 1
    assert len(hyperedges) == 1
