"""Triples become triplets; malformed ones are counted by reason."""

from pipeline.core.records import Triplet
from pipeline.knowledge.graph.build import Extracted, Graph, build_graph


def test_triplets_are_numbered_within_their_chunk() -> None:
    graph, triplets = build_graph(
        [
            Extracted("c1", "T", ["Ann", " born  in", "Rome"]),
            Extracted("c2", "T", ["Ann", "born in", "Rome"]),
            Extracted("c1", "T", ["rome", "lies in", "Italy"]),
            Extracted("c1", "T", ["ANN", "Born in", '"Rome"']),
        ]
    )
    assert triplets == [
        Triplet("c1:0", "Ann", "born in", "Rome", "c1"),
        Triplet("c2:0", "Ann", "born in", "Rome", "c2"),
        Triplet("c1:1", "rome", "lies in", "Italy", "c1"),
    ]
    assert graph.entities.names == ["Ann", "Rome", "Italy"]
    # 3 triplets have 6 ends over 3 entities; Rome has 3 of them.
    assert graph.statistics() == {
        "entities": 3,
        "triplets": 3,
        "degree_mean": 2.0,
        "out_degree_mean": 1.5,  # over Ann and Rome
        "in_degree_mean": 1.5,  # over Rome and Italy
        "degree_max": 3,
        "chunks_with_triplets": 2,
        "duplicates": 1,
        "rejects": 0,
    }


def test_a_triplet_of_one_entity_touches_it_once() -> None:
    [(triplet, ends)] = Graph().edges([Extracted("c", "T", ["Rome", "is", '"Rome"'])])
    assert (triplet.tail, ends) == ('"Rome"', (0,))
