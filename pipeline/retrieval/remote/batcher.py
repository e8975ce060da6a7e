"""Batch the queries of concurrent requests to a retrieval service.

An index and a reranker are fastest on large batches, and the clients of a service often send equal
queries. Input: the queries of each request. Output: their items. While one batch is retrieved in a
thread, incoming requests wait; the distinct queries of all of them are the next batch.
"""

from __future__ import annotations

import asyncio
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

    def __init__(self, retriever: Retriever) -> None:
        self.counts = Counts()
        self._retriever = retriever
        self._waiting: list[tuple[Sequence[Query], asyncio.Future[dict[Query, Outcome]]]] = []
        self._worker: asyncio.Task[None] | None = None

    async def retrieve(self, queries: Sequence[Query]) -> list[list[ContextItem]]:
        """The items of each query, in order.

        Raises the exception of the first query that failed.
        """
        self.counts.requests += 1
        self.counts.queries += len(queries)
        if not queries:
            return []
        future = asyncio.get_running_loop().create_future()
        self._waiting.append((queries, future))
        if self._worker is None:
            self._worker = asyncio.create_task(self._work())
        outcomes = await future
        answers = []
        for query in queries:
            outcome = outcomes[query]
            if isinstance(outcome, Exception):
                raise outcome
            answers.append(outcome)
        return answers

    async def _work(self) -> None:
        while self._waiting:
            requests, self._waiting = self._waiting, []
            batch = list(dict.fromkeys(query for queries, _ in requests for query in queries))
            outcomes = await asyncio.to_thread(self._outcomes, batch)
            for _, future in requests:
                if not future.cancelled():
                    future.set_result(outcomes)
        self._worker = None

    def _outcomes(self, batch: list[Query]) -> dict[Query, Outcome]:
        """The items or the exception of each query.

        A batch that fails is retrieved query by query, so that only the failing query's request
        fails.
        """
        self.counts.batches += 1
        self.counts.retrieved += len(batch)
        try:
            return dict(zip(batch, self._retriever.retrieve(batch), strict=True))
        except RetrievalError as error:
            if len(batch) == 1:
                return {batch[0]: error}
        except Exception as error:  # noqa: BLE001 - raised again in every request that awaits it
            return dict.fromkeys(batch, error)
        return {query: self._outcomes([query])[query] for query in batch}
