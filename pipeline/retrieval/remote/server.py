"""Serve retrieval over HTTP, so that several processes or machines share one index.

``POST /retrieve`` takes a JSON list of {subquery, entities} and returns a list of items {kind, id,
title, text, score} per query, in order, or takes and returns the objects of Search-R1's retriever
(`SearchR1Request`). Concurrent requests are batched (`Batcher`). Status 422 means a malformed
request, 500 that retrieval failed for a query; ``detail`` is one sentence. ``GET /health`` returns
the identity of the retrieval (`RetrievalIdentity`), its sizes and counts. Every response has the
fingerprint in the header `HEADER`. Status 421 means that the request names a host which is not
trusted (`is_trusted`), 401 that it lacks the token.
"""

from __future__ import annotations

import contextlib
import hmac
import json
import signal
import socket
import sys
from collections.abc import Callable, Collection, Mapping
from dataclasses import asdict

import uvicorn
from fastapi import FastAPI, Request, Response
from starlette.middleware.base import RequestResponseEndpoint
from starlette.responses import JSONResponse

from pipeline.core.errors import InputError, RetrievalError
from pipeline.core.text import one_line
from pipeline.retrieval.base import Retriever
from pipeline.retrieval.fingerprint import RetrievalIdentity
from pipeline.retrieval.remote.batcher import Batcher
from pipeline.retrieval.remote.hosts import is_trusted
from pipeline.retrieval.remote.wire import (
    HEADER,
    MAX_BODY,
    TOKEN,
    decode_queries,
    decode_search_r1,
    encode_answers,
)

_SHUTDOWN_SECONDS = 60  # time for running requests after a signal
_CONNECTIONS = 512  # above this, the server answers 503 and clients retry


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
        size = request.headers.get("content-length", "")
        try:
            if not size.isdigit() or int(size) > MAX_BODY:
                raise InputError(
                    f"expected a Content-Length of at most {MAX_BODY:,} bytes; send fewer queries"
                )
            body = await request.body()
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
            "seconds": retriever.timing,
        }
        return answer(json.dumps(about).encode())

    return app


def guarded_app(
    names: Collection[str], token: str | None, headers: Mapping[str, str] | None = None
) -> FastAPI:
    """An application that refuses requests to other hosts and without the token.

    The arguments are as in `create_app`; a refusal has ``headers``.
    """
    app = FastAPI(openapi_url=None)

    @app.middleware("http")
    async def guard(request: Request, call_next: RequestResponseEndpoint) -> Response:
        host = request.headers.get("host", "")
        given = request.headers.get("authorization", "").removeprefix("Bearer ")
        if not is_trusted(host, names):
            status, problem = (
                421,
                (
                    f"the request names the host {one_line(host, 100)!r}; expected an IP address, "
                    "localhost, or a name that steep serve allows with --allow-host"
                ),
            )
        elif token is not None and not hmac.compare_digest(given.encode(), token.encode()):
            status, problem = 401, f"expected the token of steep serve (variable {TOKEN})"
        else:
            return await call_next(request)
        return JSONResponse({"detail": problem}, status, dict(headers or {}))

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
    except OSError as error:
        bound.close()
        raise InputError(
            f"cannot listen on {host}:{port} ({error.strerror}); choose another --host or --port"
        ) from None
    return bound


def server_of(app: FastAPI) -> uvicorn.Server:
    """The HTTP server of an application."""
    config = uvicorn.Config(
        app,
        ws="none",
        log_level="warning",
        access_log=False,
        limit_concurrency=_CONNECTIONS,
        timeout_graceful_shutdown=_SHUTDOWN_SECONDS,
    )
    return uvicorn.Server(config)


def serve(server: uvicorn.Server, on: socket.socket, ready: Callable[[], None]) -> None:
    """Serve on a bound socket until SIGTERM or SIGINT; running requests are still answered.

    ``ready`` is called when clients can connect.
    """
    on.listen()
    # uvicorn shuts down and then raises the signal again for the previous handler.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    ready()
    with contextlib.suppress(KeyboardInterrupt):
        server.run(sockets=[on])
