"""Semantic retrieval: chunks for subqueries (TeaRAG, arXiv 2511.05385, 4.2.3).

Input: subqueries. Output: for each, the ``top_k`` chunks with the highest raw reranker score among
the ``num_candidates`` nearest by embedding. All pairs of a call go to the reranker together.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from pipeline.core.columns import Columns
from pipeline.knowledge.index.embed import Embedder
from pipeline.knowledge.index.faiss_index import VectorIndex
from pipeline.knowledge.retrieval.base import ScoredChunk
from pipeline.knowledge.retrieval.rerank import Reranker, best_rows


@dataclass(eq=False)
class SemanticRetrieval:
    """Nearest chunks by embedding, then the best of them by the reranker.

    ``chunks`` has the columns id, title, text; its rows match the rows of ``index``.
    """

    chunks: Columns
    index: VectorIndex
    embedder: Embedder
    reranker: Reranker
    num_candidates: int = 20
    top_k: int = 5

    def retrieve(self, subqueries: Sequence[str]) -> list[list[ScoredChunk]]:
        """At most ``top_k`` chunks per subquery, best first, ties by embedding similarity."""
        if not subqueries:
            return []
        query_QD = self.embedder.encode(subqueries, "query")
        candidates = [
            [self.chunks[row] for row in rows.tolist()]
            for rows, _ in self.index.search(query_QD, self.num_candidates)
        ]
        return best_rows(
            self.reranker, subqueries, candidates, ScoredChunk, self.top_k, slice(1, 3)
        )
