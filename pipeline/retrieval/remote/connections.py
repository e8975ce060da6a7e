"""Connections of the retrieval service, which clients that send slowly or nothing cannot occupy.

A connection waits for its client until a whole request has arrived, 30 seconds at most. When more than `MAX_WAITING` connections wait, those that have waited longest are closed. The requests of
other clients arrive within milliseconds, so any number of half-sent requests leaves room for them.
"""

from __future__ import annotations

import asyncio
import json
import logging
from functools import cache

from uvicorn.protocols.http.h11_impl import H11Protocol

MAX_WAITING = 512  # connections
_NOT_HTTP = json.dumps({"detail": "the request is not valid HTTP/1.1"}).encode()


class ServiceConnection(H11Protocol):
    """One connection; uvicorn creates it.

    ``read_seconds`` is the time from the connection, or the last answer, to the end of a request.
    """

    read_seconds = 30.0
    _timer: asyncio.TimerHandle | None = None
    _waits_since = 0.0

    @property
    def waits(self) -> bool:
        """Whether the connection waits for its client."""
        cycle = self.cycle
        return cycle is None or cycle.response_complete or cycle.more_body

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._watch()
        self._make_room()

    def connection_lost(self, exc: Exception | None) -> None:
        self._stop_timer()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        self._watch()

    def on_response_complete(self) -> None:
        super().on_response_complete()
        self._watch()

    def send_400_response(self, msg: str) -> None:
        """Refuse bytes that are not HTTP; an answer that is being made then has no reader."""
        if self.cycle is None or self.cycle.response_complete:
            self.transport.write(
                b"HTTP/1.1 400 Bad Request\r\ncontent-type: application/json\r\n"
                b"connection: close\r\ncontent-length: %d\r\n\r\n%s" % (len(_NOT_HTTP), _NOT_HTTP)
            )
        self.transport.close()

    def _watch(self) -> None:
        if not self.waits or self.transport.is_closing():
            self._stop_timer()
        elif self._timer is None:
            self._waits_since = self.loop.time()
            self._timer = self.loop.call_later(self.read_seconds, self.transport.abort)

    def _stop_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _make_room(self) -> None:
        """Close the connections that have waited longest beyond `MAX_WAITING`."""
        if len(self.connections) <= MAX_WAITING:
            return
        waiting = sorted(
            (
                connection
                for connection in self.connections
                if isinstance(connection, ServiceConnection) and connection.waits
            ),
            key=lambda connection: connection._waits_since,
        )
        for connection in waiting[: max(len(waiting) - MAX_WAITING, 0)]:
            _warn()
            connection.transport.abort()
            self.connections.discard(connection)  # connection_lost runs only after this


@cache
def _warn() -> None:
    logging.getLogger("uvicorn.error").warning(
        "more than %d connections wait for their clients; the oldest are closed from now on",
        MAX_WAITING,
    )
