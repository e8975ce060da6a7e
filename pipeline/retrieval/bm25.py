"""BM25 over chunks, and its fusion with semantic retrieval: baselines of ``steep recall``.

Input: subqueries. Output: scored chunks, best first. BM25 is the library bm25s (Lucene's variant,
k1 = 1.5, b = 0.75, English stop words removed) over title and text, the texts that are embedded.
Fusion is reciprocal rank fusion (Cormack, Clarke and Büttcher, SIGIR 2009):

    score(d) = sum over rankings of 1 / (c + rank of d),   ranks from 1.

The paper uses c = 60 for rankings of 1,000 documents. Rankings of 20 are nearly flat with c = 60,
so c is 10 here.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Sequence
from typing import TypeVar

from pipeline.core.columns import Columns
from pipeline.core.errors import DependencyError
from pipeline.index.embed import passage_text
from pipeline.retrieval.base import ChunkRetriever, ScoredChunk

FUSION_CONSTANT = 10
T = TypeVar("T", bound=Hashable)


def reciprocal_ranks(rankings: Iterable[Sequence[T]], constant: int = 0) -> dict[T, float]:
    """The fused score of every ranked item, sum of 1 / (constant + rank), in order of
    appearance."""
    scores: dict[T, float] = {}
    for ranking in rankings:
        for rank, item in enumerate(ranking, start=1):
            scores[item] = scores.get(item, 0.0) + 1 / (constant + rank)
    return scores


class Bm25Retrieval:
    """BM25 over chunks; the index is in memory."""

    def __init__(self, chunks: Columns, *, top_k: int) -> None:
        """``chunks`` has the columns id, title, text. Raises DependencyError without bm25s."""
        try:
            import bm25s
        except ImportError:
            raise DependencyError("bm25s is not installed; pip install bm25s") from None
        self._library = bm25s
        self._chunks = chunks
        self._top_k = min(top_k, len(chunks))
        texts = [
            passage_text(title, text)
            for title, text in zip(chunks.column(1), chunks.column(2), strict=True)
        ]
        self._index = bm25s.BM25()
        self._index.index(self._tokenize(texts), show_progress=False)

    def retrieve(self, subqueries: Sequence[str]) -> list[list[ScoredChunk]]:
        """At most ``top_k`` chunks per subquery that share a word with it, best first."""
        if not subqueries:
            return []
        rows_QK, scores_QK = self._index.retrieve(
            self._tokenize(subqueries), k=self._top_k, show_progress=False
        )
        return [
            [
                ScoredChunk(chunk_id, title, text, score)
                for (chunk_id, title, text), score in zip(
                    (self._chunks[row] for row in rows), scores, strict=True
                )
                if score > 0
            ]
            for rows, scores in zip(rows_QK.tolist(), scores_QK.tolist(), strict=True)
        ]

    def _tokenize(self, texts: Sequence[str]) -> list[list[str]]:
        words: list[list[str]] = self._library.tokenize(
            list(texts), return_ids=False, show_progress=False
        )
        return words


class FusedRetrieval:
    """Reciprocal rank fusion of several chunk retrievals."""

    def __init__(self, *retrievals: ChunkRetriever, top_k: int) -> None:
        self._retrievals = retrievals
        self._top_k = top_k

    def retrieve(self, subqueries: Sequence[str]) -> list[list[ScoredChunk]]:
        """At most ``top_k`` chunks per subquery, best first, with their fused scores."""
        rankings = [retrieval.retrieve(subqueries) for retrieval in self._retrievals]
        return [self._fuse(of_query) for of_query in zip(*rankings, strict=True)]

    def _fuse(self, rankings: Sequence[Sequence[ScoredChunk]]) -> list[ScoredChunk]:
        chunks = {chunk.id: chunk for ranking in reversed(rankings) for chunk in ranking}
        scores = reciprocal_ranks(
            [[chunk.id for chunk in ranking] for ranking in rankings], FUSION_CONSTANT
        )
        order = sorted(scores, key=lambda chunk_id: -scores[chunk_id])[: self._top_k]
        return [
            ScoredChunk(chunk_id, chunks[chunk_id].title, chunks[chunk_id].text, scores[chunk_id])
            for chunk_id in order
        ]
