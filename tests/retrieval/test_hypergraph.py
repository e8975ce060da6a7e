"""Retrieval over a hypergraph: the ranking of each variant, and the entities of a query."""

from __future__ import annotations

import random
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from pipeline.core.columns import Columns
from pipeline.core.records import ContextItem
from pipeline.knowledge.graph.adjacency import Adjacency
from pipeline.knowledge.graph.build import Extracted
from pipeline.knowledge.graph.facts import Facts
from pipeline.knowledge.graph.tables import HYPEREDGE_COLUMNS, write_hyperedges
from pipeline.knowledge.index.faiss_index import VectorIndex
from pipeline.knowledge.retrieval.base import Query
from pipeline.knowledge.retrieval.hypergraph import HypergraphRetrieval, HypergraphVariant
from pipeline.knowledge.retrieval.informativeness import Incidence
from tests.retrieval.small_encoders import BagOfWords

FACTS = [
    ["Alba directed Up in Rome", ["Alba", "Up", "Rome"]],
    ["Bo was born in Oslo", ["Bo", "Oslo"]],
    ["Rome is a city", ["Rome", "city"]],
    ["Oslo is a city", ["Oslo", "city"]],
    ["Up won a prize", ["Up", "prize"]],
]


def opened(
    folder: Path,
    variant: HypergraphVariant,
    top_k: int = 5,
    *,
    facts_of_chunks: Sequence[Sequence[Any]] = FACTS,
    every_candidate: bool = False,
) -> HypergraphRetrieval:
    facts = Facts()
    extracted = [Extracted(f"c{number}", "T", fact) for number, fact in enumerate(facts_of_chunks)]
    write_hyperedges(folder, facts.edges(extracted), facts.entities)
    embedder = BagOfWords()
    entities = embedder.encode(facts.entities.names, "passage")
    hyperedges = embedder.encode([text for text, _ in facts_of_chunks], "passage")
    return HypergraphRetrieval(
        variant,
        Columns(folder / "hyperedges.arrow", HYPEREDGE_COLUMNS),
        facts.entities.names,
        Incidence(Adjacency.load(folder / "members"), Adjacency.load(folder / "neighbours")),
        entities,
        VectorIndex.build(entities, "flat"),
        VectorIndex.build(hyperedges, "flat"),
        embedder,
        top_k=top_k,
        every_candidate=every_candidate,
    )


def test_query_entities_are_mentions_and_key_entities(tmp_path: Path) -> None:
    retrieval = opened(tmp_path, "prograph")
    names = ["Alba", "Up", "Rome", "Bo", "Oslo", "city", "prize"]
    assert retrieval.query_entities(Query("Which city did Alba leave for Oslo?")) == [0, 4]
    assert retrieval.query_entities(Query("Which prize?", ("  UP ", "Venice"))) == [
        names.index("Up")
    ]
    assert retrieval.query_entities(Query("Oslo")) == [4]
    assert retrieval.query_entities(Query("nobody", ("nobody",))) == []


def test_query_without_mentions_uses_the_five_nearest_entities(
    tmp_path: Path,
) -> None:
    """In a text without capitals, single words are no mentions; the embedder still matches them."""
    retrieval = opened(tmp_path, "prograph")
    explicit = Query("alba up rome bo city", ("Alba", "Up", "Rome", "Bo", "city"))
    [results, expected] = retrieval.retrieve([Query(explicit.subquery), explicit])
    assert retrieval.query_entities(Query(explicit.subquery)) == []
    assert results == expected != []


def test_all_candidates_are_ranked_only_where_they_are_asked_for(tmp_path: Path) -> None:
    """Fact c1 has no entity of the query, but Rossi Film, which is in the query's fact c0 and like Alba Rossi.

    The five facts nearest to the words of the query are others.
    """
    near = [[f"Where is river number {n}", [f"River {n}", f"Sea {n}"]] for n in range(5)]
    facts = [
        ["Alba Rossi runs Rossi Film", ["Alba Rossi", "Rossi Film"]],
        ["Rossi Film rents rooms in Turin", ["Rossi Film", "Turin"]],
        *near,
    ]
    query = Query("Where is river Alba Rossi")
    for every, expected in ((False, ["c0:f0"]), (True, ["c0:f0", "c1:f0"])):
        folder = tmp_path / str(every)
        folder.mkdir()
        retrieval = opened(folder, "prograph", facts_of_chunks=facts, every_candidate=every)
        [results] = retrieval.retrieve([query])
        assert sorted(edge.id for edge in results if edge.score > 0) == expected


def test_hyperedges_variant_ranks_by_similarity(tmp_path: Path) -> None:
    [results, other] = opened(tmp_path, "hyperedges", top_k=1).retrieve(
        [Query("Bo was born in"), Query("won a prize")]
    )
    assert [edge.id for edge in (*results, *other)] == ["c1:f0", "c4:f0"]


def test_graph_r1_equals_a_plain_python_reference(tmp_path: Path) -> None:
    rng = random.Random(0)
    words = [f"name{number}" for number in range(12)]
    for case in range(20):
        made = [rng.sample(words, rng.randint(2, 5)) for _ in range(rng.randint(1, 25))]
        facts = [[" ".join(names) + f" f{number}", names] for number, names in enumerate(made)]
        (folder := tmp_path / str(case)).mkdir()
        retrieval = opened(folder, "graph-r1", top_k=10, facts_of_chunks=facts)
        query = Query(" ".join(rng.sample(words, 3)))
        vector = retrieval.embedder.encode([query.subquery], "query")
        [(entities, _)] = retrieval.entity_index.search(vector, 5)
        [(edges, _)] = retrieval.hyperedge_index.search(vector, 5)
        named = [retrieval.names[entity] for entity in entities]
        links = [(name, edge) for name in named for edge in range(len(made)) if name in made[edge]]
        degree = {name: sum(name in members for members in made) for name in words}
        links.sort(key=lambda link: -(degree[link[0]] + len(made[link[1]])))
        fused: dict[int, float] = {}
        for ranking in ([edge for _, edge in links], edges.tolist()):
            for place, edge in enumerate(ranking):
                fused[edge] = fused.get(edge, 0) + 1 / (place + 1)
        best = sorted(fused, key=lambda edge: -fused[edge])[:10]
        [results] = retrieval.retrieve([query])
        assert [(one.id, one.score) for one in results] == [(f"c{e}:f0", fused[e]) for e in best]


def test_hyperedge_becomes_a_context_item(tmp_path: Path) -> None:
    [items] = opened(tmp_path, "prograph", top_k=1).retrieve([Query("What did Alba direct?")])
    assert items == [
        ContextItem("hyperedge", "c0:f0", "", "Alba directed Up in Rome", pytest.approx(np.log(2)))
    ]
