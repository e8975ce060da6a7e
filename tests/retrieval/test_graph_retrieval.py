"""Two-stage graph retrieval: entities of the key entities, then triplets one hop from them."""

import numpy as np

from pipeline.knowledge.graph.adjacency import Adjacency
from pipeline.knowledge.index.faiss_index import VectorIndex
from pipeline.knowledge.retrieval import graph
from pipeline.knowledge.retrieval.base import Query, top_positions
from pipeline.knowledge.retrieval.graph import GraphRetrieval, entity_query
from pipeline.knowledge.retrieval.rerank import BiEncoder
from tests.retrieval.small_encoders import BagOfWords

FACTS = [
    ("Alba", "directed", "The Tide"),
    ("Alba", "mother of", "Bruno"),
    ("Bruno", "lives in", "Corte"),
    ("corte", "crossed by", "Nera"),
    ("Nera", "joins", "Nera"),
]
NAMES = ["Alba", "The Tide", "Bruno", "Corte", "Nera"]
# Alba is in facts 0 and 1, The Tide in 0, Bruno in 1 and 2, Corte in 2 and 3, Nera in 3 and 4.
OFFSETS, ROWS = [0, 2, 3, 5, 7, 9], [0, 1, 0, 1, 2, 2, 3, 3, 4]


class RecordingReranker(BiEncoder):
    """A bi-encoder over words that records every call."""

    def __init__(self):
        super().__init__(BagOfWords(), scale=10.0, offset=-5.0)
        self.calls = []

    def score(self, pairs):
        self.calls.append(list(pairs))
        return super().score(pairs)


def retrieval(reranker=None, **settings):
    encoder = BagOfWords()
    return GraphRetrieval(
        [(f"t{n}", *fact, "c") for n, fact in enumerate(FACTS)],
        [(name,) for name in NAMES],
        Adjacency(np.array(OFFSETS), np.array(ROWS)),
        encoder.encode([" ".join(fact) for fact in FACTS], "passage"),
        VectorIndex.build(encoder.encode(NAMES, "passage"), "flat"),
        encoder,
        reranker or RecordingReranker(),
        **settings,
    )


def test_triplets_are_within_one_hop_of_the_entities():
    # "crossed by Nera" matches the words best, but is two hops from Alba.
    results = retrieval(top_k_entities=1).retrieve([Query("who is crossed by Nera", ("Alba",))])
    assert {triplet.id for triplet in results[0]} == {"t0", "t1"}


def test_entities_of_all_key_entities_are_united():
    rows = retrieval(top_k_entities=1).entities([Query("where", ("Alba", "Nera"))])
    assert rows == [[0, 4]]


def test_entity_query_has_the_wording_of_the_paper():
    reranker = RecordingReranker()
    retrieval(reranker, num_candidate_entities=1).retrieve([Query("Who is Alba?", ("Alba",))])
    assert reranker.calls[0] == [("Key entity: Alba. Query: Who is Alba?.", "Alba")]
    assert entity_query("Alba", "Who?") == "Key entity: Alba. Query: Who?."


def test_candidate_triplets_of_all_queries_are_reranked_in_one_call():
    reranker = RecordingReranker()
    queries = [Query("Alba directed what", ("Alba",)), Query("Bruno lives where", ("Bruno",))]
    results = retrieval(reranker, num_candidates=2, top_k=1, top_k_entities=1).retrieve(queries)
    assert len(reranker.calls) == 2  # entities, then triplets
    assert len(reranker.calls[1]) == 4
    assert [[triplet.id for triplet in triplets] for triplets in results] == [["t0"], ["t2"]]


class FirstOnly:
    """Codes that choose one candidate."""

    def nearest(self, query_D, rows):
        return rows[:1]


def test_codes_choose_among_the_triplets_of_a_hub_alone(monkeypatch):
    query = Query("Alba mother of whom", ("Alba",))
    for many, expected in ((1, {"t0"}), (2, {"t0", "t1"})):
        monkeypatch.setattr(graph, "MANY", many)
        [found] = retrieval(signs=FirstOnly(), top_k_entities=1).retrieve([query])
        assert {triplet.id for triplet in found} == expected


def test_query_without_key_entities_gets_no_triplets():
    assert retrieval().retrieve([Query("who"), Query("who", (" ",))]) == [[], []]


def test_top_positions_breaks_ties_by_position_however_many_there_are():
    scores = np.array([0.5] * 10 + [0.9] + [0.5] * 10)
    assert top_positions(scores, 3).tolist() == [10, 0, 1]
    assert top_positions(np.array([0.1, 0.2]), 5).tolist() == [1, 0]
