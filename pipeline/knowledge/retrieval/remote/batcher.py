"""Batch the queries of concurrent requests to a retrieval service.

An index and a reranker are fastest on large batches, and the clients of a service often send equal
queries. Input: the queries of each request. Output: their items. While one batch is retrieved in a
thread, incoming requests wait; the distinct queries of the first of them are the next batch. A
request with many queries waits again for each part, so that small requests come between.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass

from pipeline.core.errors import RetrievalError, SteepError
from pipeline.core.records import ContextItem
from pipeline.knowledge.retrieval.base import Query, Retriever
from pipeline.knowledge.retrieval.remote.guard import log_failure
from pipeline.knowledge.retrieval.remote.wire import PART

Outcome = list[ContextItem] | RetrievalError


@dataclass
class Counts:
    """Numbers since the start of the service."""

    requests: int = 0
    queries: int = 0  # queries of all requests
    empty: int = 0  # of these, those without text, which find nothing
    retrieved: int = 0  # queries that reached the retriever
    batches: int = 0


class Batcher:
    """Shares a retriever between the requests of one event loop."""

    def __init__(self, retriever: Retriever) -> None:
        self.counts = Counts()
        self._retriever = retriever
        self._waiting: deque[tuple[Sequence[Query], asyncio.Future[dict[Query, Outcome]]]] = deque()
        self._worker: asyncio.Task[None] | None = None

    async def retrieve(self, queries: Sequence[Query]) -> list[list[ContextItem]]:
        """The items of each query, in order; a query without text has none.

        Raises RetrievalError, for the first query that failed.
        """
        with_text = [query for query in queries if query.subquery.strip()]
        self.counts.requests += 1
        self.counts.queries += len(queries)
        self.counts.empty += len(queries) - len(with_text)
        outcomes: dict[Query, Outcome] = {}
        for first in range(0, len(with_text), PART):
            outcomes |= await self._part(with_text[first : first + PART])
        answers = []
        for query in queries:
            outcome = outcomes.get(query, [])
            if isinstance(outcome, RetrievalError):
                raise outcome
            answers.append(outcome)
        return answers

    async def _part(self, queries: Sequence[Query]) -> dict[Query, Outcome]:
        future = asyncio.get_running_loop().create_future()
        self._waiting.append((queries, future))
        if self._worker is None:
            self._worker = asyncio.create_task(self._work())
        outcomes: dict[Query, Outcome] = await future
        return {query: outcomes[query] for query in queries}

    async def _work(self) -> None:
        while self._waiting:
            requests, batch = [], dict[Query, None]()
            while self._waiting and (not batch or len(batch) + len(self._waiting[0][0]) <= PART):
                requests.append(self._waiting.popleft())
                batch |= dict.fromkeys(requests[-1][0])
            try:
                outcomes = await asyncio.to_thread(self._outcomes, list(batch))
            except RuntimeError as error:  # no further thread; later batches may get one
                outcomes = dict.fromkeys(batch, RetrievalError(str(error)))
            for _, future in requests:
                if not future.cancelled():
                    future.set_result(outcomes)
        self._worker = None

    def _outcomes(self, batch: list[Query]) -> dict[Query, Outcome]:
        """The items or the error of each query.

        A batch that fails is retrieved query by query, so that only the failing query's request
        fails.
        """
        self.counts.batches += 1
        self.counts.retrieved += len(batch)
        try:
            return dict(zip(batch, self._retriever.retrieve(batch), strict=True))
        except BaseException as error:  # noqa: BLE001 - tokenizers panic with one
            if len(batch) == 1:
                if not isinstance(error, RetrievalError):
                    log_failure(f"query {batch[0].subquery!r:.80}", error)
                    reason = str(error) if isinstance(error, SteepError) else type(error).__name__
                    error = RetrievalError(f"retrieval failed: {reason}")
                return {batch[0]: error}
        return {query: self._outcomes([query])[query] for query in batch}
