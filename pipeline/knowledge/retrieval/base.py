"""Types that the parts of retrieval exchange: queries, scored candidates and retriever protocols.

Callers outside this package use `Query`, `Retriever` and `ContextItem` only. Sampling, evaluation
and baselines open the same retriever from the same configuration (TeaRAG 4.2.3 to 4.2.5).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from pipeline.core.records import ContextItem

if TYPE_CHECKING:  # commands that check a run import this module
    import numpy as np
    from numpy.typing import NDArray


@dataclass(frozen=True, slots=True)
class Query:
    """A subquery q and its key entities v_1..v_j.

    ``later`` says that the trajectory has searched before.
    """

    subquery: str
    entities: tuple[str, ...] = ()
    later: bool = False


@dataclass(frozen=True, slots=True)
class ScoredChunk:
    """A candidate chunk; ``score`` is the retrieval's raw score, in most cases the reranker's."""

    id: str
    title: str
    text: str
    score: float


@dataclass(frozen=True, slots=True)
class ScoredTriplet:
    """A candidate triplet; ``score`` is the reranker's raw score against the subquery."""

    id: str
    head: str
    relation: str
    tail: str
    chunk_id: str | None  # the chunk that it was extracted from
    score: float

    @property
    def text(self) -> str:
        """Head, relation and tail, separated by spaces."""
        return f"{self.head} {self.relation} {self.tail}"


class Retriever(Protocol):
    """Retrieves the context items of many subqueries at once."""

    @property
    def timing(self) -> dict[str, float]:
        """Seconds spent so far, by part.

        In process the parts are semantic and graph, which overlap, and ppr; for a retrieval service
        the only part is service, the time spent waiting.
        """
        ...

    def retrieve(self, queries: Sequence[Query]) -> list[list[ContextItem]]:
        """The items of each query, best first, in the order of the queries.

        Equal queries are answered once. Raises RetrievalError when models or indexes fail twice,
        RetrievalUnavailable when a retrieval service does not answer.
        """
        ...

    def close(self) -> None:
        """Release threads and connections; the retriever must not be used afterwards."""
        ...


class ChunkRetriever(Protocol):
    """Retrieves scored chunks for subqueries."""

    def retrieve(self, subqueries: Sequence[str]) -> list[list[ScoredChunk]]:
        """The chunks of each subquery, best first."""
        ...


def top_positions(scores_N: NDArray[np.floating], k: int) -> NDArray[np.int64]:
    """Positions of the k highest scores [N], best first, ties by position."""
    import numpy as np

    if len(scores_N) > 4 * k:
        threshold = np.partition(scores_N, len(scores_N) - k)[len(scores_N) - k]
        kept = np.flatnonzero(scores_N >= threshold)
    else:
        kept = np.arange(len(scores_N))
    order: NDArray[np.int64] = kept[np.argsort(-scores_N[kept], kind="stable")][:k]
    return order
