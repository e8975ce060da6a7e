import numpy as np
import pytest

from pipeline.errors import StoreError
from pipeline.graph.entities import entity_key
from pipeline.index.faiss_index import VectorIndex
from pipeline.retrieval.base import Query
from pipeline.retrieval.graph import GraphRetrieval, entity_query, neighbours_of
from pipeline.retrieval.neighbours import Neighbours
from pipeline.retrieval.rerank import BiEncoder
from pipeline.retrieval.tables import best
from tests.retrieval.small_encoders import BagOfWords

FACTS = [
    ("Alba", "directed", "The Tide"),
    ("Alba", "mother of", "Bruno"),
    ("Bruno", "lives in", "Corte"),
    ("corte", "crossed by", "Nera"),
    ("Nera", "joins", "Nera"),
]
NAMES = ["Alba", "The Tide", "Bruno", "Corte", "Nera"]


class Rows(list):
    """Stands for Columns: a list of tuples with whole columns."""

    def column(self, number):
        return [row[number] for row in self]


class RecordingReranker(BiEncoder):
    """The bi-encoder over words; remembers every pair."""

    def __init__(self):
        super().__init__(BagOfWords(), scale=10.0, offset=-5.0)
        self.calls = []

    def score(self, pairs):
        self.calls.append(list(pairs))
        return super().score(pairs)


def retrieval(reranker=None, **settings):
    triplets = Rows((f"t{n}", *fact, "c") for n, fact in enumerate(FACTS))
    encoder = BagOfWords()
    return GraphRetrieval(
        triplets,
        Rows((name,) for name in NAMES),
        neighbours_of(triplets, [entity_key(name) for name in NAMES], "graph"),
        encoder.encode([" ".join(fact) for fact in FACTS], "passage"),
        VectorIndex.build(encoder.encode(NAMES, "passage"), "flat"),
        encoder,
        reranker or RecordingReranker(),
        **settings,
    )


def test_triplets_come_from_one_hop_around_the_entities_only():
    # "crossed by Nera" matches the words best, but is two hops from Alba.
    found = retrieval(entities_keep=1).retrieve([Query("who is crossed by Nera", ("Alba",))])
    assert {triplet.id for triplet in found[0]} == {"t0", "t1"}


def test_entities_of_all_key_entities_are_united():
    asked = retrieval(entities_keep=1).entities([Query("where", ("Alba", "Nera"))])
    assert asked == [[0, 4]]


def test_entity_index_is_asked_in_the_words_of_the_paper():
    reranker = RecordingReranker()
    retrieval(reranker, entities_recall=1).retrieve([Query("Who is Alba?", ("Alba",))])
    assert reranker.calls[0] == [("Key entity: Alba. Query: Who is Alba?.", "Alba")]
    assert entity_query("Alba", "Who?") == "Key entity: Alba. Query: Who?."


def test_reranker_sees_recalled_triplets_of_all_queries_in_one_call():
    reranker = RecordingReranker()
    queries = [Query("Alba directed what", ("Alba",)), Query("Bruno lives where", ("Bruno",))]
    found = retrieval(reranker, recall=2, keep=1, entities_keep=1).retrieve(queries)
    assert len(reranker.calls) == 2  # entities, then triplets
    assert len(reranker.calls[1]) == 4
    assert [[triplet.id for triplet in triplets] for triplets in found] == [["t0"], ["t2"]]


def test_without_key_entities_nothing_is_found():
    assert retrieval().retrieve([Query("who"), Query("who", (" ",))]) == [[], []]


def test_scores_are_the_raw_scores_of_the_reranker():
    found = retrieval(entities_keep=1).retrieve([Query("Alba directed The Tide", ("Alba",))])[0]
    assert found[0].id == "t0"
    assert found[0].score == pytest.approx(10 * 1 - 5)


def test_neighbours_name_each_triplet_once_even_when_both_ends_are_asked():
    head, tail = np.array([0, 0, 1, 2]), np.array([1, 2, 2, 2])
    neighbours = Neighbours(head, tail, 4)
    assert neighbours.of([0, 1]).tolist() == [0, 1, 2]
    assert neighbours.of([2]).tolist() == [1, 2, 3]
    assert neighbours.of([3]).tolist() == []
    assert neighbours.of([]).tolist() == []


def test_triplet_of_an_unknown_entity_means_the_graph_is_broken():
    with pytest.raises(StoreError, match=r"'alba' of triplets\.parquet is not in entities"):
        neighbours_of(Rows([("t", "Alba", "r", "Bruno", "c")]), ["bruno"], "graph")


def test_best_breaks_ties_by_position_however_many_there_are():
    scores = np.array([0.5] * 10 + [0.9] + [0.5] * 10)
    assert best(scores, 3).tolist() == [10, 0, 1]
    assert best(np.array([0.1, 0.2]), 5).tolist() == [1, 0]
