"""Batch the queries of concurrent requests to a retrieval service.

An index and a reranker are fastest on large batches, and the clients of a service often send equal
queries. Input: the queries of each request. Output: their items. While one batch is retrieved in a
thread, incoming queries wait for the next one. A query that waits or is being retrieved is not retrieved
again; all requests that contain it share its result.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass

from pipeline.core.errors import RetrievalError
from pipeline.core.records import ContextItem
from pipeline.retrieval.base import Query, Retriever

Outcome = list[ContextItem] | Exception


@dataclass
class Counts:
    """Numbers since the start of the service."""

    requests: int = 0
    queries: int = 0  # queries of all requests
    retrieved: int = 0  # queries that reached the retriever
    batches: int = 0


class Batcher:
    """Shares a retriever between the requests of one event loop."""

    def __init__(self, retriever: Retriever, *, max_batch: int = 256) -> None:
        """``max_batch`` is the largest number of texts in a batch of several queries.

        The texts of a query are its subquery and its entities.
        """
        self.counts = Counts()
        self._retriever = retriever
        self._max_batch = max_batch
        self._futures: dict[Query, asyncio.Future[Outcome]] = {}
        self._waiting: deque[Query] = deque()
        self._worker: asyncio.Task[None] | None = None

    async def retrieve(self, queries: Sequence[Query]) -> list[list[ContextItem]]:
        """The items of each query, in order. Raises the exception of the first query that
        failed."""
        self.counts.requests += 1
        self.counts.queries += len(queries)
        futures = [self._future(query) for query in queries]
        if futures:
            if self._worker is None:
                self._worker = asyncio.create_task(self._work())
            # Not asyncio.gather, which would cancel futures that other requests await when this
            # request is cancelled.
            await asyncio.wait(set(futures))
        answers = []
        for future in futures:
            outcome = future.result()
            if isinstance(outcome, Exception):
                raise outcome
            answers.append(outcome)
        return answers

    def _future(self, query: Query) -> asyncio.Future[Outcome]:
        if query not in self._futures:
            self._futures[query] = asyncio.get_running_loop().create_future()
            self._waiting.append(query)
        return self._futures[query]

    def _next_batch(self) -> list[Query]:
        """The queries to retrieve now; empty when none waits."""
        batch: list[Query] = []
        texts = 0
        while self._waiting:
            texts += 1 + len(self._waiting[0].entities)
            if batch and texts > self._max_batch:
                break
            batch.append(self._waiting.popleft())
        return batch

    async def _work(self) -> None:
        while batch := self._next_batch():
            outcomes = await asyncio.to_thread(self._outcomes, batch)
            for query, outcome in zip(batch, outcomes, strict=True):
                self._futures.pop(query).set_result(outcome)
        self._worker = None

    def _outcomes(self, batch: list[Query]) -> list[Outcome]:
        """The items or the exception of each query.

        A batch that fails is retrieved query by query, so that only the failing query's request
        fails.
        """
        self.counts.batches += 1
        self.counts.retrieved += len(batch)
        try:
            return list(self._retriever.retrieve(batch))
        except RetrievalError as error:
            if len(batch) == 1:
                return [error]
        except Exception as error:  # noqa: BLE001 - raised again in every request that awaits it
            return [error for _ in batch]
        return [self._outcomes([query])[0] for query in batch]
