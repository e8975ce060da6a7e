"""Two-stage graph retrieval: triplets for subqueries with key entities (TeaRAG, 2511.05385, 4.2.3).

Input: subqueries q with key entities v. Stage one searches the entity index with ``Key entity: v.
Query: q.`` for each v, reranks the candidates against the same text, and unites the best entities
of all v into V_q. Stage two takes the triplets one hop from V_q, keeps the nearest to q by
embedding and reranks them against q. A hub has too many triplets to read all their embeddings, so
short codes (`pipeline.knowledge.index.signs`) first choose the nearest ones. Output: scored
triplets. All pairs of a stage go to the reranker together.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from pipeline.core.columns import Columns
from pipeline.knowledge.graph.adjacency import Adjacency
from pipeline.knowledge.index.embed import Embedder, Vectors
from pipeline.knowledge.index.faiss_index import DECIMALS, VectorIndex
from pipeline.knowledge.index.signs import MANY, SignCodes
from pipeline.knowledge.retrieval.base import Query, ScoredTriplet, top_positions
from pipeline.knowledge.retrieval.rerank import Reranker, best_rows, score_candidates

HEAD, TAIL = 1, 3  # positions among the triplets' columns


def entity_query(entity: str, subquery: str) -> str:
    """The text that searches the entity index for one key entity."""
    return f"Key entity: {entity}. Query: {subquery}."


def entity_queries(queries: Sequence[Query]) -> list[str]:
    """The texts that search the entity index for the key entities of the queries, each once."""
    return list(
        dict.fromkeys(
            entity_query(entity, query.subquery)
            for query in queries
            for entity in query.entities
            if entity.strip()
        )
    )


@dataclass(eq=False)
class GraphRetrieval:
    """Entities near the key entities, then the triplets one hop from them.

    Columns of ``triplets``: id, head, relation, tail, chunk_id; of ``entity_names``: name.
    ``adjacency`` gives the triplets of each entity. ``triplet_TD`` may be memory-mapped: only rows
    one hop from V_q are read, or those that ``signs`` choose among more than `MANY`.
    """

    triplets: Columns
    entity_names: Columns
    adjacency: Adjacency
    triplet_TD: Vectors
    entity_index: VectorIndex
    embedder: Embedder
    reranker: Reranker
    signs: SignCodes | None = None
    num_candidate_entities: int = 10
    top_k_entities: int = 5
    num_candidates: int = 20
    top_k: int = 10

    def retrieve(self, queries: Sequence[Query]) -> list[list[ScoredTriplet]]:
        """At most ``top_k`` triplets per query, best first, ties by embedding similarity.

        A query without key entities gets no triplets.
        """
        if not queries:
            return []
        candidates = self._nearest(queries, self.entities(queries))
        subqueries = [query.subquery for query in queries]
        return best_rows(
            self.reranker,
            subqueries,
            candidates,
            ScoredTriplet,
            self.top_k,
            slice(HEAD, TAIL + 1),
        )

    def entities(self, queries: Sequence[Query]) -> list[list[int]]:
        """V_q of each query: rows of the entity table, ascending."""
        texts = entity_queries(queries)
        if not texts:
            return [[] for _ in queries]
        text_AD = self.embedder.encode(texts, "query")
        candidates = [
            rows.tolist()
            for rows, _ in self.entity_index.search(text_AD, self.num_candidate_entities)
        ]
        scores = score_candidates(
            self.reranker,
            texts,
            [[self.entity_names[row][0] for row in rows] for rows in candidates],
        )
        selected = {
            text: [rows[n] for n in top_positions(scores_N, self.top_k_entities).tolist()]
            for text, rows, scores_N in zip(texts, candidates, scores, strict=True)
        }
        return [
            sorted(
                {
                    row
                    for entity in query.entities
                    for row in selected.get(entity_query(entity, query.subquery), ())
                }
            )
            for query in queries
        ]

    def _nearest(
        self, queries: Sequence[Query], entities: Sequence[Sequence[int]]
    ) -> list[list[tuple[str, ...]]]:
        """The ``num_candidates`` triplets nearest to each subquery, one hop from its entities."""
        query_QD = self.embedder.encode([query.subquery for query in queries], "query")
        nearest = []
        for query_D, rows in zip(query_QD, self.adjacency.union(entities), strict=True):
            if self.signs is not None and len(rows) > MANY:
                rows = self.signs.nearest(query_D, rows)
            cosine_N = np.round(self.triplet_TD[rows] @ query_D, DECIMALS)
            kept = rows[top_positions(cosine_N, self.num_candidates)]
            nearest.append([self.triplets[row] for row in kept.tolist()])
        return nearest
