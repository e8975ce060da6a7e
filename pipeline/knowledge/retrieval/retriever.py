"""The retriever: the variants of TeaRAG (arXiv 2511.05385), table 7, and of ProGraph-R1, table 4.

Input: subqueries with key entities. Output: context items. The variants return, at most ``top_k``
(k_f) of each kind:

=============================  ===================================================
semantic (TeaRAG-S)            the best chunks
fused, linked                  the best chunks (`retrieval.linked`), beyond the papers
graph (TeaRAG-G)               the best triplets
concat (TeaRAG-Con)            the best chunks, then the best triplets
ppr (TeaRAG)                   the best nodes of the KAG, by mass
hyperedges, graph-r1,          the best hyperedges (`retrieval.hypergraph`)
prograph
none                           nothing
=============================  ===================================================

Table 7 counts 88 tokens per retrieval for TeaRAG-G and 879 for TeaRAG-Con against 790 for TeaRAG-S,
so both return as many triplets as the other variants return items. Items of ``semantic``, ``graph``
and ``concat`` are scored by sigmoid(raw score), items of ``fused`` and ``linked`` by the score of
their retrieval.

Three options go beyond the paper and are off by default: `KeyEntityExpansion` and
`LinkedChunkExpansion` (`retrieval.expansion`), and ``show``, which keeps one node of each passage
(``passages``: the best one; ``chunks``: the chunk), so that k_f items are k_f passages.
"""

from __future__ import annotations

import sqlite3
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import partial
from time import perf_counter
from typing import TypeVar

from pipeline.config.knowledge import Show, Variant
from pipeline.core.content_cache import LruCache
from pipeline.core.errors import RetrievalError, SteepError
from pipeline.core.records import ContextItem
from pipeline.knowledge.index.embed import Embedder
from pipeline.knowledge.retrieval.base import (
    ChunkRetriever,
    Query,
    ScoredChunk,
    ScoredTriplet,
)
from pipeline.knowledge.retrieval.expansion import KeyEntityExpansion, LinkedChunkExpansion
from pipeline.knowledge.retrieval.graph import GraphRetrieval, entity_queries
from pipeline.knowledge.retrieval.hypergraph import HypergraphRetrieval
from pipeline.knowledge.retrieval.kag import Candidates, RankedNode, rank_all, sigmoid

T = TypeVar("T")
_CACHED = 50_000  # answers kept in memory for the other samples of the same question
_ATTEMPTS = 2
_RETRIED = (RuntimeError, OSError, MemoryError, sqlite3.Error)  # CUDA out of memory is RuntimeError


@dataclass(eq=False)
class VariantRetriever:
    """Retrieves the context of one variant; semantic and graph retrieval run concurrently.

    ``semantic`` and ``graph`` may be None when the variant does not use them. ``hypergraph`` is
    required for the hypergraph variants, which use it alone; its time counts as "graph". ``later``
    replaces ``semantic`` for later queries of a trajectory. ``embedder`` is that of both searches:
    it embeds the texts of both at once, which is faster for a few queries. ``tau`` and ``alpha``
    are the parameters of the KAG (`kag.rank`).
    """

    variant: Variant
    semantic: ChunkRetriever | None
    graph: GraphRetrieval | None
    top_k: int = 5
    tau: float = 0.2
    alpha: float = 0.5
    show: Show = "nodes"
    key_entities: KeyEntityExpansion | None = None
    linked_chunks: LinkedChunkExpansion | None = None
    hypergraph: HypergraphRetrieval | None = None
    later: ChunkRetriever | None = None
    embedder: Embedder | None = None

    def __post_init__(self) -> None:
        self._answers: LruCache[Query, list[ContextItem]] = LruCache(_CACHED)
        self._seconds = {"semantic": 0.0, "graph": 0.0, "ppr": 0.0}
        self._threads = ThreadPoolExecutor(max_workers=2, thread_name_prefix="retrieval")
        self._lock = threading.Lock()

    @property
    def timing(self) -> dict[str, float]:
        """Seconds spent so far in semantic, graph and ppr; semantic and graph overlap."""
        return dict(self._seconds)

    def retrieve(self, queries: Sequence[Query]) -> list[list[ContextItem]]:
        """The items of each query, best first, in the order of the queries.

        Recent answers are cached. Raises RetrievalError when models or indexes fail twice.
        """
        if self.later is None:
            queries = [replace(query, later=False) for query in queries]
        with self._lock:
            answers: dict[Query, list[ContextItem]] = {}
            missing: list[Query] = []
            for query in dict.fromkeys(queries):
                cached = self._answers.get(query)
                if cached is None:
                    missing.append(query)
                else:
                    answers[query] = cached
            for query, items in zip(missing, self._compute(missing), strict=True):
                answers[query] = items
                self._answers.put(query, items)
        return [list(answers[query]) for query in queries]

    def close(self) -> None:
        """Shut down the two threads."""
        self._threads.shutdown()

    def _compute(self, queries: list[Query]) -> list[list[ContextItem]]:
        if not queries or self.variant == "none":
            return [[] for _ in queries]
        if self.hypergraph is not None:
            return self._run("graph", partial(self.hypergraph.retrieve, queries))
        if self.key_entities is not None:
            queries = [self.key_entities.extend(query) for query in queries]
        if self.embedder is not None:
            self._run("semantic", partial(self._embed, queries))
        chunks = self._threads.submit(self._chunks, queries)
        triplets = self._threads.submit(self._run, "graph", lambda: self._triplets(queries))
        candidates = [
            Candidates(query.entities, of_chunks, of_triplets)
            for query, of_chunks, of_triplets in zip(
                queries, chunks.result(), triplets.result(), strict=True
            )
        ]
        if self.variant == "ppr":
            if self.linked_chunks is not None:
                candidates = self._run(
                    "graph", lambda: self._with_linked_chunks(queries, candidates)
                )
            return self._run("ppr", lambda: self._best_nodes(candidates))
        shown = float if self.variant in ("fused", "linked") else sigmoid
        return [
            [_chunk_item(chunk, shown(chunk.score)) for chunk in of_query.chunks[: self.top_k]]
            + [
                _triplet_item(triplet, shown(triplet.score))
                for triplet in of_query.triplets[: self.top_k]
            ]
            for of_query in candidates
        ]

    def _embed(self, queries: list[Query]) -> None:
        """Embed all texts that the searches embed, which then find the vectors in memory."""
        assert self.embedder is not None
        texts = [*(query.subquery for query in queries), *entity_queries(queries)]
        self.embedder.encode(texts, "query")

    def _chunks(self, queries: list[Query]) -> list[list[ScoredChunk]]:
        if self.variant == "graph" or self.semantic is None:
            return [[] for _ in queries]
        found: dict[tuple[str, bool], list[ScoredChunk]] = {}
        for later, retrieval in ((False, self.semantic), (True, self.later)):
            subqueries = list(dict.fromkeys(q.subquery for q in queries if q.later == later))
            if retrieval is not None and subqueries:
                chunks = self._run("semantic", partial(retrieval.retrieve, subqueries))
                found.update(zip(((text, later) for text in subqueries), chunks, strict=True))
        return [found[query.subquery, query.later] for query in queries]

    def _triplets(self, queries: list[Query]) -> list[list[ScoredTriplet]]:
        if self.variant == "semantic" or self.graph is None:
            return [[] for _ in queries]
        return self.graph.retrieve(queries)

    def _with_linked_chunks(
        self, queries: list[Query], candidates: list[Candidates]
    ) -> list[Candidates]:
        assert self.linked_chunks is not None
        triplets = [of_query.triplets for of_query in candidates]
        ids = [[chunk.id for chunk in of_query.chunks] for of_query in candidates]
        linked = self.linked_chunks.retrieve(queries, triplets, ids)
        return [
            Candidates(of_query.entities, [*of_query.chunks, *chunks], of_query.triplets)
            for of_query, chunks in zip(candidates, linked, strict=True)
        ]

    def _best_nodes(self, candidates: list[Candidates]) -> list[list[ContextItem]]:
        """The items of the best KAG nodes of each query."""
        return [
            [
                _chunk_item(of_query.chunks[node.position], node.mass)
                if node.kind == "chunk"
                else _triplet_item(of_query.triplets[node.position], node.mass)
                for node in _selectable(of_query, ranking, self.show)[: self.top_k]
            ]
            for of_query, ranking in zip(
                candidates, rank_all(candidates, tau=self.tau, alpha=self.alpha), strict=True
            )
        ]

    def _run(self, part: str, work: Callable[[], T]) -> T:
        """The result of ``work()``, which is timed, and tried again once.

        Raises RetrievalError after the second failure, so that no failure becomes context.
        """
        start = perf_counter()
        try:
            for attempt in range(1, _ATTEMPTS + 1):
                try:
                    return work()
                except SteepError:
                    raise  # these errors name their remedy, and a second attempt would fail too
                except _RETRIED as error:
                    if attempt == _ATTEMPTS:
                        raise RetrievalError(
                            f"{part} retrieval failed {_ATTEMPTS} times: "
                            f"{type(error).__name__}: {error}"
                        ) from error
            raise AssertionError("unreachable")
        finally:
            self._seconds[part] += perf_counter() - start


def _selectable(step: Candidates, ranking: list[RankedNode], show: Show) -> list[RankedNode]:
    """The nodes of a ranking that ``show`` allows, in order."""
    if show == "nodes":
        return ranking
    if show == "chunks":
        return [node for node in ranking if node.kind == "chunk"]
    of_passage: dict[str, RankedNode] = {}
    for node in ranking:
        source = node.id if node.kind == "chunk" else step.triplets[node.position].chunk_id
        of_passage.setdefault(source or node.id, node)
    return list(of_passage.values())


def _chunk_item(chunk: ScoredChunk, score: float) -> ContextItem:
    return ContextItem("chunk", chunk.id, chunk.title, chunk.text, score)


def _triplet_item(triplet: ScoredTriplet, score: float) -> ContextItem:
    return ContextItem("triplet", triplet.id, "", triplet.text, score)
