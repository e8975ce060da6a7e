"""Chunks that triplets and key entities lead to."""

from pipeline.knowledge.retrieval.base import Query, ScoredTriplet
from pipeline.knowledge.retrieval.expansion import LinkedChunkExpansion
from pipeline.knowledge.retrieval.rerank import BiEncoder
from tests.retrieval.fake_columns import FakeColumns
from tests.retrieval.small_encoders import BagOfWords

ROWS = [
    ("a-0", "Alba", "alba mother of bruno"),
    ("b-0", "Bruno", "bruno was born in corte"),
    ("c-0", "Corte", "corte is a city"),
    ("c-1", "Corte", "the river crossed it"),
    ("d-0", "Dora", "dora sings"),
]
TRIPLET = ScoredTriplet("a-0:0", "Alba", "mother of", "BRUNO", "a-0", 1.0)


def linked(top_k=10):
    encoder = BagOfWords()
    vectors = encoder.encode([f"{title} {text}" for _, title, text in ROWS], "passage")
    reranker = BiEncoder(encoder, scale=10.0, offset=-5.0)
    return LinkedChunkExpansion(FakeColumns(ROWS), vectors, encoder, reranker, top_k=top_k)


def ids(results):
    return [[chunk.id for chunk in chunks] for chunks in results]


def test_linked_chunks_come_from_sources_ends_and_key_entities():
    queries = [Query("where was bruno born", ("Corte",)), Query("who is alba", ())]
    results = linked().retrieve(queries, [[TRIPLET], [TRIPLET]], [{"c-0"}, set()])
    # Bruno's chunk by the tail, Alba's by head and source, Corte's other chunk by the key entity.
    assert [sorted(chunk_ids) for chunk_ids in ids(results)] == [
        ["a-0", "b-0", "c-1"],
        ["a-0", "b-0"],
    ]
    assert ids(results)[0][0] == "b-0"
    scores = [chunk.score for chunk in results[0]]
    assert scores == sorted(scores, reverse=True)
