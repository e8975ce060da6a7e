"""One request to an endpoint over HTTP, with every way in which no reply arrives named.

Input: the body of a request. Output: status, headers and body of the reply. Replies come from a server
that is not trusted, so their size is bounded, redirects are never followed, and the whole exchange has
one deadline. Proxies and certificates are those of the environment (``HTTPS_PROXY``, ``NO_PROXY``,
``SSL_CERT_FILE``).
"""

from __future__ import annotations

import asyncio
import json
import socket
import ssl
import urllib.request
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from pipeline.core.http_body import BodyError, BoundedBody, HttpReply
from pipeline.core.text import one_line
from pipeline.llm.api_key import ApiKey

if TYPE_CHECKING:
    import httpx

MAX_REPLY = 16 * 2**20  # bytes
_CONNECT_SECONDS = 30.0
_SHOWN = 200  # characters of a cause in a message
_CERTIFICATES = (
    "let SSL_CERT_FILE name a file with the certificate of its authority, or correct base_url"
)


class NoReply(Exception):
    """One request got no complete reply.

    ``remedy`` is empty where another try may succeed; otherwise it says what the user can do.
    """

    def __init__(self, reason: str, remedy: str = "") -> None:
        super().__init__(reason)
        self.remedy = remedy


class EndpointHttp:
    """Sends requests to ``base_url``/chat/completions; ``timeout`` are seconds per request.

    Raises NoReply when the address, the proxy or the certificates of the environment are not usable.
    """

    def __init__(self, base_url: str, key: ApiKey, timeout: float) -> None:
        import httpx

        self._host = urlsplit(base_url).netloc
        self._url = f"{base_url.rstrip('/')}/chat/completions"
        self._timeout = timeout
        self._key = key
        headers = {
            "content-type": "application/json",
            "accept": "application/json",
            "accept-encoding": "identity",
            "user-agent": "steep",
        }
        if key.value is not None:
            headers["authorization"] = f"Bearer {key.value}"
        self._connect_seconds = min(_CONNECT_SECONDS, timeout / 2)
        try:
            self._client = httpx.AsyncClient(
                headers=headers,
                timeout=httpx.Timeout(None, connect=self._connect_seconds),
                limits=httpx.Limits(max_connections=None, max_keepalive_connections=None),
                follow_redirects=False,
            )
        except (ImportError, ValueError, OSError, httpx.InvalidURL) as error:
            raise NoReply(
                f"the HTTP client cannot be set up ({one_line(str(error), _SHOWN)})",
                "correct HTTPS_PROXY, HTTP_PROXY, ALL_PROXY, SSL_CERT_FILE and SSL_CERT_DIR",
            ) from None

    async def post(self, body: Mapping[str, object]) -> HttpReply:
        """The reply to a request with the JSON ``body``. Raises NoReply."""
        import httpx

        started: list[int] = []  # the status of a reply whose body is being read
        try:
            # A deadline for the whole exchange: httpx restarts its timeouts with every byte.
            return await asyncio.wait_for(self._exchange(body, started), self._timeout)
        except httpx.ConnectTimeout:
            reason = f"no connection to {self._peer()} within {self._connect_seconds:g} s"
            raise NoReply(reason) from None
        except TimeoutError:
            what = "no complete reply" if started else "no reply"
            raise NoReply(f"{what} within {self._timeout:g} s") from None
        except httpx.TransportError as error:
            raise self._broken(error) from None
        except (httpx.InvalidURL, UnicodeError) as error:
            raise NoReply(
                f"the address cannot be used ({one_line(str(error), _SHOWN)})", "correct base_url"
            ) from None

    async def _exchange(self, body: Mapping[str, object], started: list[int]) -> HttpReply:
        content = json.dumps(body).encode("ascii")
        async with self._client.stream("POST", self._url, content=content) as response:
            started.append(response.status_code)
            try:
                reply = BoundedBody(response.headers, MAX_REPLY)
                async for part in response.aiter_raw():
                    reply.add(part)
                return HttpReply(response.status_code, response.headers, reply.finish())
            except BodyError as error:
                raise NoReply(f"the reply cannot be read: {error}") from None

    def _broken(self, error: httpx.TransportError) -> NoReply:
        """What a transport error is, by the innermost cause that says it."""
        import httpx

        detail = one_line(self._key.clean(str(error)), _SHOWN) or type(error).__name__
        for cause in _causes(error):
            if isinstance(cause, ssl.SSLCertVerificationError):
                problem = one_line(cause.verify_message, _SHOWN)
                return NoReply(
                    f"the TLS certificate of {self._host} was refused ({problem})", _CERTIFICATES
                )
            if isinstance(cause, ssl.SSLError):
                reason = str(cause.reason or cause)
                remedy = "correct base_url (http instead of https?)"
                return NoReply(
                    f"the TLS handshake with {self._host} failed ({one_line(reason, _SHOWN)})",
                    remedy if reason in ("WRONG_VERSION_NUMBER", "RECORD_LAYER_FAILURE") else "",
                )
            if isinstance(cause, socket.gaierror):
                return NoReply(f"the host name of {self._peer()} was not found ({cause.strerror})")
            if isinstance(cause, ConnectionRefusedError):
                return NoReply(f"the connection to {self._peer()} was refused")
        if isinstance(error, httpx.ProxyError):
            return NoReply(f"{self._peer()} refused the connection ({detail})")
        if isinstance(error, httpx.ConnectError):
            return NoReply(f"no connection to {self._peer()} ({detail})")
        return NoReply(f"the connection to {self._peer()} broke ({detail})")

    def _peer(self) -> str:
        """The host, and the variable of a proxy that stands before it."""
        scheme = urlsplit(self._url).scheme
        proxies = urllib.request.getproxies()
        if urllib.request.proxy_bypass(self._host) or not (scheme in proxies or "all" in proxies):
            return self._host
        return f"{self._host} through the proxy of {scheme.upper()}_PROXY"

    async def close(self) -> None:
        """Close all connections."""
        await self._client.aclose()


def _causes(error: BaseException) -> Iterator[BaseException]:
    """The error and everything that led to it; exception groups are opened."""
    waiting: list[BaseException | None] = [error]
    seen: set[int] = set()
    while waiting:
        cause = waiting.pop()
        if cause is None or id(cause) in seen:
            continue
        seen.add(id(cause))
        yield cause
        waiting += [cause.__cause__, cause.__context__, *getattr(cause, "exceptions", ())]
