"""Optional expansions of retrieval beyond TeaRAG (arXiv 2511.05385), off by default.

- `KeyEntityExpansion` (``retrieval.named_entities``) adds the entities and titles that a subquery
  mentions to its key entities. The single-round baselines (definition 3.1) have no policy that
  names key entities; the question itself stands in for one, and as a node of the KAG it has no
  edges.
- `LinkedChunkExpansion` (``retrieval.linked_chunks``) adds the chunks that the triplets lead to.
  For a question about the mother of a film's director, one of them is the page of the director. In
  the paper (4.2.4) the KAG holds only the chunks of semantic retrieval.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from pipeline.core.columns import Columns
from pipeline.knowledge.graph.entities import entity_key
from pipeline.knowledge.graph.names import NameIndex
from pipeline.knowledge.index.embed import Embedder, Vectors
from pipeline.knowledge.index.faiss_index import DECIMALS
from pipeline.knowledge.retrieval.base import Query, ScoredChunk, ScoredTriplet, top_positions
from pipeline.knowledge.retrieval.rerank import Reranker, best_rows


class KeyEntityExpansion:
    """Adds the entities that a subquery mentions to its key entities."""

    def __init__(self, names: Iterable[str]) -> None:
        """``names`` are the names of entities and titles; see `NameIndex` for their memory."""
        self._index = NameIndex(names)

    def extend(self, query: Query) -> Query:
        """The query with the mentioned entities appended to its key entities.

        A key entity that equals the whole subquery is dropped when any entity is mentioned.
        """
        mentioned = [name for mention in self._index.find(query.subquery) for name in mention.names]
        if not mentioned:
            return query
        kept = [entity for entity in query.entities if entity != query.subquery]
        return Query(query.subquery, tuple(dict.fromkeys((*kept, *mentioned))))


@dataclass(eq=False)
class LinkedChunkExpansion:
    """Retrieves the chunks that a query's triplets lead to.

    These are the source chunks of the triplets, and the chunks whose title is a key entity or an
    end of a triplet. The nearest by embedding are scored by the reranker. Memory: one number per
    chunk and per title. ``chunks`` has the columns id, title, text; ``chunk_CD`` may be
    memory-mapped.
    """

    chunks: Columns
    chunk_CD: Vectors
    embedder: Embedder
    reranker: Reranker
    top_k: int

    def __post_init__(self) -> None:
        self._by_id = {chunk_id: row for row, chunk_id in enumerate(self.chunks.column(0))}
        self._by_title: dict[str, list[int]] = {}
        for row, title in enumerate(self.chunks.column(1)):
            if key := entity_key(title):
                self._by_title.setdefault(key, []).append(row)

    def retrieve(
        self,
        queries: Sequence[Query],
        triplets: Sequence[Sequence[ScoredTriplet]],
        retrieved_ids: Sequence[Collection[str]],
    ) -> list[list[ScoredChunk]]:
        """At most ``top_k`` linked chunks per query, best first.

        ``triplets`` and ``retrieved_ids`` belong to the queries in order; chunks whose ids are in
        ``retrieved_ids`` are excluded.
        """
        query_QD = self.embedder.encode([query.subquery for query in queries], "query")
        candidates = []
        for query, query_D, of_query, excluded in zip(
            queries, query_QD, triplets, retrieved_ids, strict=True
        ):
            linked = set(self._linked_rows(query, of_query))
            rows = np.array(sorted(linked - {self._by_id[i] for i in excluded}), dtype=int)
            cosine_N = np.round(self.chunk_CD[rows] @ query_D, DECIMALS)
            nearest = rows[top_positions(cosine_N, self.top_k)].tolist()
            candidates.append([self.chunks[row] for row in nearest])
        subqueries = [query.subquery for query in queries]
        return best_rows(
            self.reranker, subqueries, candidates, ScoredChunk, self.top_k, slice(1, 3)
        )

    def _linked_rows(self, query: Query, triplets: Sequence[ScoredTriplet]) -> Iterator[int]:
        names = list(query.entities)
        for triplet in triplets:
            names += (triplet.head, triplet.tail)
            if triplet.chunk_id in self._by_id:
                yield self._by_id[triplet.chunk_id]
        for name in names:
            yield from self._by_title.get(entity_key(name), ())
