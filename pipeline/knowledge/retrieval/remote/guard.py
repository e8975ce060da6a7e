"""The guard in front of every service: `steep serve`, `steep record` and `steep browse`.

Input: a request. Output: the answer of the service behind it, or a refusal. It refuses requests of
other sites, bodies of another type, bodies that are too large or too slow, requests above a limit,
and all requests once the service drains. An exception in a request is that request's answer, with
one line in the log.
"""

from __future__ import annotations

import asyncio
import logging
import traceback
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from pipeline.core.text import one_line
from pipeline.knowledge.retrieval.remote.wire import MAX_BODY

_MEMORY = 16 * MAX_BODY  # bytes of all requests that are answered


class Refusal(Exception):
    """A request is not answered; ``status`` is that of HTTP."""

    def __init__(self, status: int, problem: str) -> None:
        super().__init__(problem)
        self.status = status


@dataclass
class Traffic:
    """The limits of a service, and the requests that it answers now.

    ``private`` are the addresses at which steep's own processes ask. They are answered while the
    service drains too, and above its limits.
    """

    connections: int = 512  # and requests that are answered at once
    body_seconds: float = 60.0  # in which a request must have come
    idle_seconds: float = 30.0  # that a connection may wait for its client
    running: int = 0
    held: int = 0  # bytes of the requests that are answered
    draining: bool = False
    private: set[tuple[str, int]] = field(default_factory=set)


def json_refusal(refusal: Refusal) -> Response:
    """The refusal in the forms of OpenAI and of the retrieval service; clients read either."""
    problem, status = str(refusal), refusal.status
    return JSONResponse({"detail": problem, **openai_error(problem, status)}, status)


def openai_error(problem: str, status: int, param: str | None = None) -> dict[str, Any]:
    """An error in OpenAI's form; ``param`` is the field of the request that it concerns."""
    kind = "invalid_request_error" if status < 429 else "server_error"
    return {"error": {"message": problem, "type": kind, "param": param, "code": None}}


class Guard:
    """An application behind the guard.

    ``check`` raises `Refusal` for a request that is not allowed. ``shown`` makes the answer of a
    refusal, which gets ``headers``. Bodies have the type ``body_type`` and at most ``most`` bytes.
    With ``pages`` other sites may link to the application, whose forms hold a token.
    """

    def __init__(
        self,
        app: ASGIApp,
        *,
        traffic: Traffic,
        check: Callable[[Request], None] = lambda _: None,
        shown: Callable[[Refusal], Response] = json_refusal,
        headers: Mapping[str, str] | None = None,
        body_type: str = "application/json",
        most: int = MAX_BODY,
        pages: bool = False,
    ) -> None:
        self._app, self._traffic, self._check, self._shown = app, traffic, check, shown
        self._headers, self._body_type = dict(headers or {}), body_type
        self._most, self._pages = most, pages

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        own = tuple(scope.get("server") or ()) in self._traffic.private
        self._traffic.running += not own
        body, begun = bytearray(), False

        async def sent(message: Message) -> None:
            nonlocal begun
            begun = True
            await send(message)

        try:
            request = Request(scope, receive)
            self._check(request)
            self._admit(request, own)
            await self._read(request, body)
            await self._app(scope, _again(bytes(body), receive), sent)
        except Refusal as refusal:
            await self._refused(refusal)(scope, receive, send)
        except ClientDisconnect:
            return
        except Exception as error:  # noqa: BLE001 - it is the answer of this request
            log_failure(f"{scope['method']} {scope['path']}", error)
            if begun:
                return  # the server closes the connection
            failed = Refusal(500, f"the service failed at this request ({type(error).__name__})")
            await self._refused(failed)(scope, receive, send)
        finally:
            self._traffic.running -= not own
            self._traffic.held -= len(body)

    def _admit(self, request: Request, own: bool) -> None:
        """Raises `Refusal` for a request of another site, of another type, or above the limits."""
        headers, traffic = request.headers, self._traffic
        if _of_another_site(request, self._pages):
            raise Refusal(403, "the request came from a page of another site")
        given = headers.get("content-type", "").partition(";")[0].strip().lower()
        if request.method not in ("GET", "HEAD") and given not in ("", self._body_type):
            raise Refusal(
                415, f"the body has the type {one_line(given, 100)}; expected {self._body_type}"
            )
        if traffic.draining and not own:
            raise Refusal(503, "the service ends; ask again when it has started again")
        if traffic.running > traffic.connections and not own:
            raise Refusal(503, f"{traffic.connections} requests are answered now; ask again later")

    async def _read(self, request: Request, body: bytearray) -> None:
        """Read the body of a request into ``body``.

        Raises `Refusal` for a body that is too large or too slow.
        """
        traffic, seconds = self._traffic, self._traffic.body_seconds
        size = request.headers.get("content-length", "0")
        try:
            async with asyncio.timeout(seconds):
                if int(size) <= self._most:
                    async for part in request.stream():
                        body += part
                        traffic.held += len(part)
                        if len(body) > self._most or traffic.held > _MEMORY:
                            break
                    else:
                        return
        except TimeoutError:
            problem = f"the body has not come within {seconds:g} s; send it faster"
            raise Refusal(408, problem) from None
        if traffic.held > _MEMORY:
            raise Refusal(503, f"requests of {_MEMORY:,} bytes are answered now; ask again later")
        raise Refusal(413, f"the body is longer than {self._most:,} bytes; send less at once")

    def _refused(self, refusal: Refusal) -> Response:
        response = self._shown(refusal)
        response.headers.update(self._headers)
        if refusal.status == 503:
            response.headers["Retry-After"] = "5"  # seconds
        elif refusal.status == 408:
            response.headers["Connection"] = "close"  # the rest of its body would follow
        return response


def _of_another_site(request: Request, pages: bool) -> bool:
    """Whether a page of another site made its web browser send a request."""
    site, origin = request.headers.get("sec-fetch-site"), request.headers.get("origin")
    if site not in (None, "same-origin", "none"):
        linked = request.headers.get("sec-fetch-mode") == "navigate"
        return not (pages and linked and request.method in ("GET", "HEAD"))
    if origin is None or (origin == "null" and (pages or site is not None)):
        return False  # web browsers send null with forms of pages that send no referrer
    return origin.partition("://")[2].lower() != request.headers.get("host", "").lower()


def _again(body: bytes, receive: Receive) -> Receive:
    """Gives a body that was read, and then what ``receive`` gives."""
    parts = [body]

    async def received() -> Message:
        if parts:
            return {"type": "http.request", "body": parts.pop(), "more_body": False}
        return await receive()

    return received


def log_failure(asked: str, error: BaseException) -> None:
    """Log an exception on one line, with the place where it was raised."""
    places = traceback.extract_tb(error.__traceback__)
    where = f" ({places[-1].filename}:{places[-1].lineno})" if places else ""
    line = one_line(f"{asked}: {type(error).__name__}: {error}", 500)
    logging.getLogger(__name__).error("%s%s", line, where)
