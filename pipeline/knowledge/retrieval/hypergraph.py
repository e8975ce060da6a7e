"""Retrieve hyperedges for queries: the hypergraph variants of ProGraph-R1's table 4.

Input: queries. Output: hyperedges as context items, scored by the variant.

- ``hyperedges``: the nearest to the query by embedding.
- ``graph-r1`` (the public code of Graph-R1, arXiv 2507.21892): two rankings, fused by the sum of
  reciprocal ranks. One has the 5 nearest hyperedges. The other has all hyperedges of the 5 nearest
  entities, once for each of these that is in them, by the degree of the entity plus the number of
  entities of the hyperedge. The public code orders equal degrees by a weight that its extraction
  gives; facts have none here, so the order of the entities decides. The 5 best of them by
  similarity, which were tried before, are another method.
- ``prograph``: by the informativeness of entities, eq. 6 to 10 (`retrieval.informativeness`). V_q
  has the entities that the query mentions, the entity that equals the query, and its key entities;
  when there are none, the 5 entities nearest to the query. Mentions must look like names
  (`graph.names`): extracted entities include "it" and "film", and with every literal match in V_q,
  recall@5 of MuSiQue's questions falls from .51 to .37. Candidates are the hyperedges that share an
  entity with V_q or with the 5 hyperedges nearest to the query; with ``every_candidate`` every
  hyperedge that can be among the best by eq. 10.

Similarities are cosines of embeddings, rounded to `DECIMALS`. Ties are broken by the row of the
hyperedge in ``hyperedges``, by the order of appearance in ``graph-r1``, and by hyperedge id in
``prograph``.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Literal

import numpy as np

from pipeline.core.columns import Columns
from pipeline.core.records import ContextItem
from pipeline.knowledge.graph.adjacency import Rows
from pipeline.knowledge.graph.entities import entity_key
from pipeline.knowledge.graph.names import NameIndex
from pipeline.knowledge.index.embed import Embedder, Vectors
from pipeline.knowledge.index.faiss_index import DECIMALS, VectorIndex
from pipeline.knowledge.retrieval.base import Query
from pipeline.knowledge.retrieval.informativeness import (
    Incidence,
    best_edges,
    cosine_to_mean,
    informativeness,
    informativeness_over_all,
)

HypergraphVariant = Literal["hyperedges", "graph-r1", "prograph"]
NEAREST = 5  # entities and hyperedges nearest to the query, from which candidates are collected
ID, TEXT = range(2)  # positions among the hyperedges' columns


def reciprocal_ranks(rankings: Iterable[Sequence[int]]) -> dict[int, float]:
    """The sum over rankings of 1 / rank, from 1, of every ranked row, in order of appearance."""
    scores: dict[int, float] = {}
    for ranking in rankings:
        for rank, row in enumerate(ranking, start=1):
            scores[row] = scores.get(row, 0.0) + 1 / rank
    return scores


class EntityNames:
    """Finds the entities of a table by name and in texts: the paper's V(.) for texts."""

    def __init__(self, names: Sequence[str]) -> None:
        self._rows = {entity_key(name): row for row, name in enumerate(names)}
        self._index = NameIndex(names)

    def row(self, name: str) -> int | None:
        """The entity with this name (by `entity_key`); None when there is none."""
        return self._rows.get(entity_key(name))

    def within(self, text: str) -> list[int]:
        """The entities that a text mentions, ascending (`NameIndex.find`)."""
        names = {name for mention in self._index.find(text) for name in mention.names}
        return sorted({self._rows[entity_key(name)] for name in names})


@dataclass(eq=False)
class HypergraphRetrieval:
    """One variant of retrieval over the hypergraph.

    Columns of ``hyperedges``: id, text, chunk_id; ``names`` are the names of the entities. The
    vectors may be memory-mapped: only rows near a query are read.
    """

    variant: HypergraphVariant
    hyperedges: Columns
    names: Sequence[str]
    incidence: Incidence
    entity_VD: Vectors
    entity_index: VectorIndex
    hyperedge_index: VectorIndex
    embedder: Embedder
    top_k: int = 5
    every_candidate: bool = False

    def __post_init__(self) -> None:
        self._entity_names = EntityNames(self.names)

    def retrieve(self, queries: Sequence[Query]) -> list[list[ContextItem]]:
        """At most ``top_k`` hyperedges per query, best first."""
        if not queries:
            return []
        query_QD = self.embedder.encode([query.subquery for query in queries], "query")
        if self.variant == "hyperedges":
            return [
                self._items(zip(rows.tolist(), cosine.tolist(), strict=True))
                for rows, cosine in self.hyperedge_index.search(query_QD, self.top_k)
            ]
        near_edges = [rows for rows, _ in self.hyperedge_index.search(query_QD, NEAREST)]
        near_entities = [rows for rows, _ in self.entity_index.search(query_QD, NEAREST)]
        rank = self._fused if self.variant == "graph-r1" else self._informative
        return [
            self._items(rank(query, edges, entities))
            for query, edges, entities in zip(queries, near_edges, near_entities, strict=True)
        ]

    def query_entities(self, query: Query) -> list[int]:
        """V_q of a query, ascending: its mentions, the entity it equals, and its key entities."""
        names = self._entity_names
        exact = (names.row(name) for name in (query.subquery, *query.entities))
        return sorted({*names.within(query.subquery), *(row for row in exact if row is not None)})

    def _informative(
        self, query: Query, near_edges: Rows, near_entities: Rows
    ) -> list[tuple[int, float]]:
        query_entities = self.query_entities(query) or near_entities.tolist()
        further_entities = self.incidence.members.gather(near_edges)[0].tolist()
        cosine = cosine_to_mean(self.entity_VD, query_entities)
        rank = informativeness
        if self.every_candidate:
            rank = partial(informativeness_over_all, top_k=self.top_k)
        edges, scores = rank(
            self.incidence,
            query_entities,
            lambda rows: np.round(cosine(rows), DECIMALS),
            further_entities,
        )
        return best_edges(edges, scores, self._id, self.top_k)

    def _fused(self, _: Query, near_edges: Rows, near_entities: Rows) -> list[tuple[int, float]]:
        edge_N, degree_V = self.incidence.neighbours.gather(near_entities)
        degree_N = np.repeat(degree_V, degree_V) + self.incidence.members.degrees(edge_N)
        by_degree = edge_N[np.argsort(-degree_N, kind="stable")]
        scores = reciprocal_ranks([by_degree.tolist(), near_edges.tolist()])
        return sorted(scores.items(), key=lambda edge: -edge[1])[: self.top_k]

    def _id(self, row: int) -> str:
        return self.hyperedges[row][ID]

    def _items(self, ranking: Iterable[tuple[int, float]]) -> list[ContextItem]:
        rows = ((self.hyperedges[row], score) for row, score in ranking)
        return [ContextItem("hyperedge", row[ID], "", row[TEXT], score) for row, score in rows]
