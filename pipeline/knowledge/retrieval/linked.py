"""Retrieval of passages by the average of cosine and BM25, and by links between passages.

`FusedRetrieval` ranks passage j by its fused score

    a_j = (max(c_j, 0) / max c + b_j / max b) / 2          c: cosine, b: BM25, both to [0, 1]

`LinkedRetrieval` adds links, so that a passage can be found from another one. For a question about
the mother of a film's director, the passage of the film leads to the director's:

    x_i = a_i + t_i             t_i = 1 if the question names the title of i, which has no
                                qualifier; 1 / (2 n) if it names n titles that have one
    F_j = max x_i w(e)          over seeds i ≠ j that hold name e, the title of j
    G_j = max x_i w(e)          over seeds i ≠ j that share name e with j, df(e) <= 50, e not in
                                the question
    s_j = x_j + β F_j + κ G_j

The seeds are the `SEEDS` passages with the highest x; `pipeline.knowledge.graph.links` defines
names and their weight w. Candidates are the best of each ranking, the passages that the question
names, and those that seeds lead to, all scored exactly. The recipe is this project's own;
docs/results.md has what each term adds. PageRank over the same seeds and links was worse than these
sums.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from pipeline.core.columns import Columns
from pipeline.core.text import QUALIFIER, WORD, fold
from pipeline.knowledge.graph.adjacency import Adjacency, Rows
from pipeline.knowledge.graph.links import Links, name_key, name_keys
from pipeline.knowledge.graph.names import NameIndex
from pipeline.knowledge.index.bm25 import Bm25
from pipeline.knowledge.index.embed import Embedder, Vectors
from pipeline.knowledge.index.faiss_index import DECIMALS, SearchResult, VectorIndex
from pipeline.knowledge.retrieval.base import ScoredChunk, top_positions

CANDIDATES = 100  # passages of each ranking
SEEDS = 10
BETA, KAPPA = 0.5, 0.4
_TITLE_WORDS = 12  # longest title that is looked up in a question
_TINY = 1e-9
Doubles = NDArray[np.float64]


@dataclass(eq=False)
class FusedRetrieval:
    """Passages by the average of cosine and BM25.

    ``chunks`` has the columns id, title, text; its rows match the other arguments. Returned scores
    are scale * score + offset: a raw score for `kag`, as a reranker's.
    """

    chunks: Columns
    index: VectorIndex
    chunk_CD: Vectors
    embedder: Embedder
    bm25: Bm25
    top_k: int
    scale: float = 1.0
    offset: float = 0.0

    def __post_init__(self) -> None:
        # Indexing into a memmap object takes twice as long.
        self.chunk_CD = np.asarray(self.chunk_CD)

    def retrieve(self, subqueries: Sequence[str]) -> list[list[ScoredChunk]]:
        """At most ``top_k`` passages per subquery with their scores, best first."""
        if not subqueries or not len(self.index):
            return [[] for _ in subqueries]
        query_QD = self.embedder.encode(subqueries, "query")
        near = self.index.search(query_QD, CANDIDATES)
        results = []
        for subquery, query_D, of_query in zip(subqueries, query_QD, near, strict=True):
            rows_C, scores_C = self._scored(subquery, *self._average(subquery, query_D, of_query))
            best = top_positions(scores_C, self.top_k)
            raw_K = self.scale * scores_C[best] + self.offset
            ranked = zip(map(self.chunks.__getitem__, rows_C[best].tolist()), raw_K, strict=True)
            results.append(
                [ScoredChunk(i, title, text, float(raw)) for (i, title, text), raw in ranked]
            )
        return results

    def _average(
        self, subquery: str, query_D: Vectors, near: SearchResult
    ) -> tuple[Rows, Callable[[Rows], Doubles]]:
        """Candidate rows [C], and the function a of any rows."""
        near_K, cosine_K = near
        bm25_N = self.bm25.scores(subquery)
        best_K = top_positions(bm25_N, CANDIDATES)
        most = max(float(cosine_K[0]), _TINY), max(float(bm25_N[best_K[0]]), _TINY)

        def average(rows: Rows) -> Doubles:
            cosine = np.round(self.chunk_CD[rows] @ query_D, DECIMALS)
            return (np.maximum(cosine, 0.0) / most[0] + bm25_N[rows] / most[1]) / 2

        return np.union1d(near_K, best_K[bm25_N[best_K] > 0]), average

    def _scored(
        self, subquery: str, rows_C: Rows, average: Callable[[Rows], Doubles]
    ) -> tuple[Rows, Doubles]:
        """Rows and their scores; ``subquery`` serves `LinkedRetrieval`."""
        return rows_C, average(rows_C)


@dataclass(eq=False)
class LinkedRetrieval(FusedRetrieval):
    """Passages by the fused score, the titles in the question, and links from the best ones.

    ``links`` has a row for each passage; the other fields are `FusedRetrieval`'s.
    """

    links: Links = field(kw_only=True)

    def _scored(
        self, subquery: str, rows_C: Rows, average: Callable[[Rows], Doubles]
    ) -> tuple[Rows, Doubles]:
        """s of the candidates [C] and of the passages that links lead to."""
        named = self._named(subquery)

        def x(rows: Rows) -> Doubles:
            return average(rows) + [named.get(row, 0.0) for row in rows.tolist()]

        rows_C = np.union1d(rows_C, np.array(list(named), dtype=np.int64))
        x_C = x(rows_C)
        best = top_positions(x_C, SEEDS)
        name_M, count_S = self.links.names.gather(rows_C[best])
        seed_M, strength_M = np.repeat(rows_C[best], count_S), np.repeat(x_C[best], count_S)
        strength_M = strength_M * self.links.rarity_E[name_M]
        titled = _followed(self.links.titles, name_M, seed_M, strength_M)
        new_M = ~np.isin(name_M, self.links.find(name_keys(subquery)))
        sharing = _followed(self.links.passages, name_M[new_M], seed_M[new_M], strength_M[new_M])
        rows_C = np.unique(np.concatenate([rows_C, titled[0], sharing[0]]))
        scores_C = x(rows_C)
        for weight, (row_L, strength_L) in ((BETA, titled), (KAPPA, sharing)):
            most_C = np.zeros(len(rows_C))
            np.maximum.at(most_C, np.searchsorted(rows_C, row_L), strength_L)
            scores_C += weight * most_C
        return rows_C, scores_C

    def _named(self, question: str) -> dict[int, float]:
        """t of the passages whose titles the question names, by row."""
        written = WORD.findall(question)
        words = [fold(word) for word in written]
        # `NameIndex` finds no name that begins in lower case, unless the text has no capitals.
        lower = not any(map(str.isupper, question[1:]))
        keys = {
            name_key(words[first:last])
            for first, word in enumerate(written)
            if lower or not word[0].islower()
            for last in range(first + 1, min(first + _TITLE_WORDS, len(words)) + 1)
        }
        rows_of: dict[str, list[int]] = {}
        for row in self.links.titles.union([self.links.find(keys).tolist()])[0].tolist():
            rows_of.setdefault(self.chunks[row][1], []).append(row)
        named: dict[int, float] = {}
        for mention in NameIndex(rows_of).find(question):
            exact = [title for title in mention.names if not QUALIFIER.search(title)]
            for title in exact or mention.names:
                value = 1.0 if exact else 0.5 / len(mention.names)
                named.update((row, max(value, named.get(row, 0.0))) for row in rows_of[title])
        return named


def _followed(
    table: Adjacency, name_M: Rows, seed_M: Rows, strength_M: Doubles
) -> tuple[Rows, Doubles]:
    """The passages [L] that a table has for names of seeds, without the seed, and strengths."""
    row_L, count_M = table.gather(name_M)
    other_L = row_L != np.repeat(seed_M, count_M)
    return row_L[other_L], np.repeat(strength_M, count_M)[other_L]
