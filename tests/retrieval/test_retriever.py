"""The variants of the retriever: items, order, caching, retries and expansions."""

import threading

import pytest

from pipeline.core.errors import RetrievalError
from pipeline.core.records import ContextItem
from pipeline.knowledge.retrieval.base import Query, ScoredChunk, ScoredTriplet
from pipeline.knowledge.retrieval.expansion import KeyEntityExpansion
from pipeline.knowledge.retrieval.graph import entity_query
from pipeline.knowledge.retrieval.retriever import VariantRetriever
from tests.waiting import LIMIT


class Chunks:
    """Five chunks for any subquery; records its calls, and fails ``failures`` times."""

    def __init__(self, failures=0, meet=None):
        self.calls = []
        self.failures = failures
        self.meet = meet

    def retrieve(self, subqueries):
        self.calls.append(list(subqueries))
        if self.meet is not None:
            self.meet.wait()
        if self.failures:
            self.failures -= 1
            raise RuntimeError("out of memory")
        return [
            [ScoredChunk(f"c{n}", f"Title {n}", f"text {n}", 2.0 - n) for n in range(5)]
            for _ in subqueries
        ]


class Triplets(Chunks):
    """Ten triplets of the first key entity, the first from chunk c4."""

    def retrieve(self, queries):
        super().retrieve(queries)
        return [
            [
                ScoredTriplet(f"t{n}", query.entities[0], "near", f"B{n}", f"c{4 + n}", 1.0 - n)
                for n in range(10)
            ]
            for query in queries
        ]


QUERY = Query("where is A?", ("A",))


def item_ids(items):
    return [item.id for item in items]


def test_ppr_returns_the_k_f_best_nodes_by_mass():
    items = VariantRetriever("ppr", Chunks(), Triplets()).retrieve([QUERY])[0]
    assert len(items) == 5
    assert [item.score for item in items] == sorted((i.score for i in items), reverse=True)
    # t0 is connected to the subquery, the key entity and a retrieved chunk.
    assert "t0" in item_ids(items)
    expected = next(item for item in items if item.id == "t0")
    assert (expected.kind, expected.title, expected.text) == ("triplet", "", "A near B0")


def test_the_texts_of_both_searches_are_embedded_at_once():
    calls = []

    class FakeEmbedder:
        def encode(self, texts, role):
            calls.append((texts, role))

    retriever = VariantRetriever("ppr", Chunks(), Triplets(), embedder=FakeEmbedder())
    plain = VariantRetriever("ppr", Chunks(), Triplets())
    queries = [QUERY, Query("who is B?", ("B", "A"))]
    assert retriever.retrieve(queries) == plain.retrieve(queries)
    searches = [
        entity_query(*words)
        for words in (("A", "where is A?"), ("B", "who is B?"), ("A", "who is B?"))
    ]
    assert calls == [(["where is A?", "who is B?", *searches], "query")]


CHUNKS, TRIPLETS = ([f"{kind}{n}" for n in range(5)] for kind in "ct")


@pytest.mark.parametrize(
    ("variant", "ids", "score"),
    [
        ("semantic", CHUNKS, 0.8807970779),
        ("graph", TRIPLETS, 0.7310585786),
        ("concat", CHUNKS + TRIPLETS, 0.8807970779),
        ("fused", CHUNKS, 2),
    ],
)
def test_a_variant_returns_its_five_best_of_each_kind_and_asks_nothing_else(variant, ids, score):
    """Scores are probabilities, those of ``fused`` its retrieval's."""
    chunks, graph = Chunks(), Triplets()
    searches = chunks, None if variant == "fused" else graph
    [items] = VariantRetriever(variant, *searches).retrieve([QUERY])
    assert item_ids(items) == ids
    assert items[0].score == pytest.approx(score)
    assert [bool(one.calls) for one in (chunks, graph)] == ["c0" in ids, "t0" in ids]
    if variant == "semantic":
        assert items[0] == ContextItem("chunk", "c0", "Title 0", "text 0", items[0].score)


def test_later_searches_use_their_own_retrieval_where_there_is_one():
    first, later = Chunks(), Chunks()
    queries = [Query("q"), Query("q", later=True), Query("r", later=True)]
    retriever = VariantRetriever("linked", first, None, later=later)
    assert item_ids(retriever.retrieve(queries)[0]) == ["c0", "c1", "c2", "c3", "c4"]
    assert (first.calls, later.calls) == ([["q"]], [["q", "r"]])
    one = Chunks()
    VariantRetriever("linked", one, None).retrieve(queries)
    assert one.calls == [["q", "r"]]


def test_equal_queries_are_answered_once_within_and_across_calls():
    chunks, graph = Chunks(), Triplets()
    retriever = VariantRetriever("ppr", chunks, graph)
    other = Query("where is A?", ("Z",))
    first = retriever.retrieve([QUERY, other, QUERY])
    repeated = retriever.retrieve([QUERY])
    assert chunks.calls == [["where is A?"]]  # one subquery, two sets of key entities
    assert graph.calls == [[QUERY, other]]
    assert first[0] == first[2] == repeated[0]
    assert first[1] != first[0]


def test_semantic_and_graph_retrieval_run_concurrently():
    meet = threading.Barrier(2, timeout=LIMIT)  # breaks unless both wait at the same time
    retriever = VariantRetriever("ppr", Chunks(meet=meet), Triplets(meet=meet))
    assert len(retriever.retrieve([QUERY])[0]) == 5
    assert set(retriever.timing) == {"semantic", "graph", "ppr"}
    assert all(seconds > 0 for seconds in retriever.timing.values())


def test_two_failures_raise_retrieval_error():
    retriever = VariantRetriever("ppr", Chunks(failures=2), Triplets())
    with pytest.raises(RetrievalError, match="semantic retrieval failed 2 times: RuntimeError"):
        retriever.retrieve([QUERY])
    assert len(retriever.retrieve([QUERY])[0]) == 5  # the failure is not cached
    both = VariantRetriever("linked", Chunks(failures=1), None, later=Chunks(failures=1))
    queries = [QUERY, Query("where is B?", ("B",), later=True)]  # each is tried again
    assert [len(items) for items in both.retrieve(queries)] == [5, 5]


def test_show_keeps_the_best_node_or_the_chunk_of_each_passage():
    # t0 comes from c4; t1 to t9 come from c5 to c13, which were not retrieved.
    all_nodes = VariantRetriever("ppr", Chunks(), Triplets(), top_k=15).retrieve([QUERY])[0]
    best_of = VariantRetriever("ppr", Chunks(), Triplets(), top_k=15, show="passages")
    chunks = VariantRetriever("ppr", Chunks(), Triplets(), top_k=15, show="chunks")
    order = item_ids(all_nodes)
    dropped = max("t0", "c4", key=order.index)
    assert item_ids(best_of.retrieve([QUERY])[0]) == [name for name in order if name != dropped]
    assert item_ids(chunks.retrieve([QUERY])[0]) == [name for name in order if name[0] == "c"]


def test_key_entity_expansion_reaches_graph_retrieval_and_restart():
    graph = Triplets()
    retriever = VariantRetriever(
        "ppr", Chunks(), graph, top_k=15, key_entities=KeyEntityExpansion(["Title 3"])
    )
    plain = VariantRetriever("ppr", Chunks(), Triplets(), top_k=15)
    question = "where is Title 3?"
    query = Query(question, (question,))
    mass = {item.id: item.score for item in retriever.retrieve([query])[0]}
    before = {item.id: item.score for item in plain.retrieve([query])[0]}
    assert graph.calls == [[Query(question, ("Title 3",))]]
    # The restart has 0.5 at the title of c3 and at no other title.
    assert mass["c3"] / mass["c1"] > before["c3"] / before["c1"]


class Links:
    """One further chunk for every query, which semantic retrieval did not return."""

    def retrieve(self, queries, triplets, retrieved_ids):
        assert [set(ids) for ids in retrieved_ids] == [{"c0", "c1", "c2", "c3", "c4"}] * len(
            queries
        )
        return [[ScoredChunk("c9", of_query[0].tail, "linked", 3.0)] for of_query in triplets]


def test_linked_chunks_become_nodes_of_the_kag():
    retriever = VariantRetriever("ppr", Chunks(), Triplets(), top_k=16, linked_chunks=Links())
    assert "c9" in item_ids(retriever.retrieve([QUERY])[0])
