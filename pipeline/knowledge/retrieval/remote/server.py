"""Serve retrieval over HTTP, so that several processes or machines share one index.

``POST /retrieve`` takes a JSON list of {subquery, entities} and returns a list of items {kind, id,
title, text, score} per query, in order, or takes and returns the objects of Search-R1's retriever
(`SearchR1Request`). Concurrent requests are batched (`Batcher`). Status 422 means a malformed
request, 500 that retrieval failed for a query; ``detail`` is one sentence. ``GET /health`` returns
the identity of the retrieval (`RetrievalIdentity`), its sizes and counts. Every response has the
fingerprint in the header `HEADER`. Status 421 means that the request names a host which is not
trusted (`is_trusted`), 401 that it lacks the token; `pipeline.knowledge.retrieval.remote.guard` has
the others.
"""

from __future__ import annotations

import asyncio
import hmac
import json
import logging
import multiprocessing
import os
import signal
import socket
import time
from collections.abc import Callable, Collection, Mapping
from dataclasses import asdict
from types import FrameType
from typing import cast

import uvicorn
from fastapi import FastAPI, Request, Response
from starlette.types import ASGIApp
from uvicorn.protocols.http.h11_impl import H11Protocol
from uvicorn.server import ServerState

from pipeline.core.errors import InputError, RetrievalError
from pipeline.core.text import one_line
from pipeline.knowledge.retrieval.base import Retriever
from pipeline.knowledge.retrieval.fingerprint import RetrievalIdentity
from pipeline.knowledge.retrieval.remote.batcher import Batcher
from pipeline.knowledge.retrieval.remote.guard import Guard, Refusal, Traffic
from pipeline.knowledge.retrieval.remote.hosts import is_trusted
from pipeline.knowledge.retrieval.remote.wire import (
    HEADER,
    TOKEN,
    decode_queries,
    decode_search_r1,
    encode_answers,
)

_SHUTDOWN_SECONDS = 60  # for answers on their way when the server ends
_TICKS = 10  # of the server between looks at its connections
_BACKLOG = 128  # connections that are accepted at once, so that files can still be opened


def create_app(
    retriever: Retriever,
    identity: RetrievalIdentity,
    rows: Mapping[str, int],
    *,
    names: Collection[str] = (),
    token: str | None = None,
) -> FastAPI:
    """The service over an open retriever; ``rows`` has the number of rows of each indexed table.

    ``names`` are the names of the service besides IP addresses and localhost, in lower case. With
    ``token`` every request needs it. ``app.state.batcher`` retrieves for further routes.
    """
    batcher = Batcher(retriever)
    fingerprint = identity.fingerprint

    app = guarded_app(names, token, {HEADER: fingerprint})
    app.state.batcher = batcher

    def answer(body: bytes, status: int = 200) -> Response:
        return Response(body, status, {HEADER: fingerprint}, "application/json")

    def refusal(error: Exception, status: int) -> Response:
        return answer(json.dumps({"detail": str(error)}).encode(), status)

    @app.post("/retrieve")
    async def retrieve(request: Request) -> Response:
        """The items of each query, in order."""
        body = await request.body()
        try:
            if (asked := decode_search_r1(body)) is not None:
                found = await batcher.retrieve(asked.as_queries())
                return answer(asked.encode(found))
            return answer(encode_answers(await batcher.retrieve(decode_queries(body))))
        except InputError as error:
            return refusal(error, 422)
        except RetrievalError as error:
            return refusal(error, 500)

    @app.get("/health")
    async def health() -> Response:
        """The identity of the retrieval, its sizes and counts."""
        about = {
            "fingerprint": fingerprint,
            "identity": asdict(identity),
            "rows": dict(rows),
            "served": asdict(batcher.counts),
            "running": app.state.traffic.running,
            "seconds": retriever.timing,
        }
        return answer(json.dumps(about).encode())

    return app


def guarded_app(
    names: Collection[str], token: str | None, headers: Mapping[str, str] | None = None
) -> FastAPI:
    """An application behind the guard, which refuses other hosts and requests without the token.

    The arguments are as in `create_app`; a refusal has ``headers``.
    """
    app = FastAPI(openapi_url=None)

    def check(request: Request) -> None:
        host = request.headers.get("host", "")
        if not is_trusted(host, names):
            raise Refusal(
                421,
                f"the request names the host {one_line(host, 100)!r}; expected an IP address, "
                "localhost, or a name that steep serve allows with --allow-host",
            )
        given = request.headers.get("authorization", "").removeprefix("Bearer ")
        if token is not None and not hmac.compare_digest(given.encode(), token.encode()):
            raise Refusal(401, f"expected the token of steep serve (variable {TOKEN})")

    app.state.traffic = Traffic()
    app.add_middleware(Guard, traffic=app.state.traffic, check=check, headers=headers)
    return app


def bind_socket(host: str, port: int) -> socket.socket:
    """A socket for `serve`, bound but not listening; port 0 is any free port.

    Raises InputError when the address or port is not available.
    """
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    bound = socket.socket(family)
    bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        bound.bind((host, port))
    except (OSError, TypeError) as error:  # TypeError: no name of a host
        bound.close()
        raise _cannot_listen((host, port), error) from None
    return bound


def _cannot_listen(address: tuple[str, int], error: Exception) -> InputError:
    reason = getattr(error, "strerror", None) or error
    problem = f"cannot listen on {address[0]}:{address[1]} ({reason})"
    return InputError(f"{problem}; choose another --host or --port")


class _Connection(H11Protocol):
    """A connection that ends when its client keeps it waiting, or when others need its place."""

    traffic: Traffic

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Close the connection that has waited longest for its first request, if there are many."""
        super().connection_made(transport)
        self.made = self._since = time.monotonic()
        self._last: object = None
        others = [one for one in _open(self.server_state) if not one.transport.is_closing()]
        idle = [one for one in others if one.idle and one is not self]
        if len(others) > self.traffic.connections and idle:
            min(idle, key=lambda one: (one.cycle is not None, one.made)).transport.abort()

    @property
    def idle(self) -> bool:
        """Whether no request is answered."""
        return self.cycle is None or self.cycle.response_complete

    def look(self, now: float) -> None:
        """Close the connection if its client has sent or taken nothing for too long."""
        waits = self.idle or self.flow.write_paused
        if not waits or self.cycle is not self._last:
            self._since, self._last = now, self.cycle
        elif now - self._since > self.traffic.idle_seconds:
            self.transport.abort()


def _open(state: ServerState) -> set[_Connection]:
    return cast(set[_Connection], state.connections)


class Server(uvicorn.Server):
    """The HTTP server of an application.

    A signal makes it refuse new requests and end when the running ones are answered. A second
    signal ends the process and its children at once.
    """

    def __init__(self, app: ASGIApp) -> None:
        self.traffic: Traffic = getattr(getattr(app, "state", None), "traffic", Traffic())
        config = uvicorn.Config(
            app,
            http=type("Connection", (_Connection,), {"traffic": self.traffic}),
            ws="none",
            log_level="warning",
            access_log=False,
            backlog=_BACKLOG,
            timeout_graceful_shutdown=_SHUTDOWN_SECONDS,
        )
        super().__init__(config)

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """Called at SIGTERM and SIGINT."""
        if self.traffic.draining:
            for process in multiprocessing.active_children():
                process.kill()
            os._exit(128 + sig)
        self.traffic.draining = True
        if self.traffic.running:  # the signal may have come while a line was being printed
            line = f"{self.traffic.running} requests are still answered; a second signal ends now\n"
            os.write(2, line.encode())

    async def on_tick(self, counter: int) -> bool:
        """Called ten times a second; True ends the server."""
        if counter % _TICKS == 0:
            for connection in tuple(_open(self.server_state)):
                connection.look(time.monotonic())
        if self.traffic.draining and not self.traffic.running:
            self.should_exit = True
        return await super().on_tick(counter)


def serve(
    server: Server, on: socket.socket, ready: Callable[[], None], *private: socket.socket
) -> None:
    """Serve on bound sockets until SIGTERM or SIGINT; running requests are still answered.

    At the ``private`` sockets no limit holds, and requests are answered until the server ends.
    ``ready`` is called when clients can connect. Raises InputError when another process listens on
    an address since it was bound: two that do not listen yet can be bound to the same.
    """
    server.traffic.private |= {one.getsockname()[:2] for one in private}
    for one in (on, *private):
        try:
            one.listen()
        except OSError as error:
            raise _cannot_listen(one.getsockname()[:2], error) from None
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, server.handle_exit)
    # One line for each message; packages that are served have set up other logs.
    logging.basicConfig(format="%(asctime)s  %(message)s", datefmt="%H:%M:%S", force=True)
    ready()
    server.run(sockets=[on, *private])
