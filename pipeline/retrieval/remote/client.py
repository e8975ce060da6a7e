"""Client of the retrieval service: the retriever of a run with ``retrieval.service``.

Input: queries. Output: the same items that the index returns in process. During an outage the
client retries with growing pauses for ``retrieval.service_patience`` seconds. After that, or when
the service has another index or other settings than this configuration, RetrievalUnavailable stops
the stage, so that no trajectory continues without its documents. Every response is checked, because
a service can be restarted with another index during a run, and another server may have its address:
redirects are not followed, and time and size of a response are bounded.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from time import perf_counter
from typing import Any

import httpx
from tenacity import (
    Retrying,
    before_sleep_log,
    retry_if_exception_type,
    stop_after_attempt,
    stop_after_delay,
    wait_exponential_jitter,
)

from pipeline.core.errors import InputError, RetrievalError, RetrievalUnavailable
from pipeline.core.http_body import BodyError, BoundedBody, HttpReply
from pipeline.core.input_files import parse_json
from pipeline.core.records import ContextItem
from pipeline.core.text import one_line
from pipeline.retrieval.base import Query
from pipeline.retrieval.fingerprint import RetrievalIdentity
from pipeline.retrieval.remote.wire import (
    HEADER,
    MAX_ANSWER,
    decode_answers,
    encode_queries,
    requests_of,
)

_TIMEOUT = httpx.Timeout(10.0, read=300.0)  # seconds; a batch may wait for other clients' batches
_LONGEST = 600.0  # seconds of one request; the timeouts restart with every byte
_SHOWN = 300  # characters of the server's words in a message
_RETRIED_STATUS = frozenset({429, 502, 503, 504})  # busy, or a proxy without its service


class _NoAnswer(Exception):
    """One attempt failed, and another may succeed."""


class RemoteRetriever:
    """A retriever that sends queries to a retrieval service over one open connection."""

    def __init__(self, url: str, identity: RetrievalIdentity, *, patience: float = 60.0) -> None:
        """Raises RetrievalUnavailable when there is no service or its identity differs.

        ``identity`` is the expected retrieval, ``patience`` the seconds of retries during an
        outage.
        """
        self._url = url
        self._identity = identity
        self._patience = patience
        self._seconds = 0.0
        # trust_env=False: proxies from environment variables do not reach services in a local
        # network.
        self._http = httpx.Client(
            base_url=url,
            timeout=_TIMEOUT,
            headers={"accept-encoding": "identity"},
            trust_env=False,
            follow_redirects=False,
        )
        self._retrying = Retrying(
            retry=retry_if_exception_type(_NoAnswer),
            stop=stop_after_delay(patience) & stop_after_attempt(2),
            wait=wait_exponential_jitter(initial=0.1, max=5.0, jitter=0.1),
            before_sleep=before_sleep_log(logging.getLogger(__name__), logging.WARNING),
            reraise=True,
        )
        try:
            self._request("GET", "/health")
        except BaseException:
            self.close()
            raise

    @property
    def timing(self) -> dict[str, float]:
        """Seconds spent waiting for the service, under the key "service"."""
        return {"service": self._seconds}

    def retrieve(self, queries: Sequence[Query]) -> list[list[ContextItem]]:
        """The items of each query, in the order of the queries; equal queries are sent once.

        Raises RetrievalError when the service rejects a query or fails for it, RetrievalUnavailable
        when the service does not answer.
        """
        start = perf_counter()
        try:
            answers: dict[Query, list[ContextItem]] = {}
            for part in requests_of(dict.fromkeys(queries)):
                answers.update(zip(part, self._items(part), strict=True))
            return [list(answers[query]) for query in queries]
        finally:
            self._seconds += perf_counter() - start

    def close(self) -> None:
        """Close the connection."""
        self._http.close()

    def _items(self, queries: Sequence[Query]) -> list[list[ContextItem]]:
        response = self._request("POST", "/retrieve", encode_queries(queries))
        try:
            answers = decode_answers(response.body)
        except InputError as error:
            problem = one_line(str(error), _SHOWN)
            raise self._unavailable(f"malformed response ({problem}); check its version") from None
        if len(answers) != len(queries):
            raise self._unavailable(
                f"{len(answers)} answers for {len(queries)} queries; check its version"
            )
        return answers

    def _request(self, method: str, path: str, body: bytes | None = None) -> HttpReply:
        """The response with status 200 of the expected retrieval, after retries."""
        try:
            response: HttpReply = self._retrying(self._request_once, method, path, body)
        except _NoAnswer as error:
            raise self._unavailable(
                f"no answer for {self._patience:g} s ({error}); start it with: "
                f"steep serve-retrieval --config FILE --port {self._http.base_url.port or 80}, "
                "where FILE is this configuration"
            ) from None
        if 300 <= response.status < 400:
            target = one_line(response.headers.get("location", ""), _SHOWN) or "no address"
            raise self._unavailable(
                f"status {response.status}, a redirect to {target}, which is not followed; name the "
                "address of the service itself"
            )
        if HEADER not in response.headers:
            raise self._unavailable(
                f"status {response.status} without the header {HEADER}; the address is not a "
                "retrieval service, or the service failed; read its log"
            )
        if response.headers[HEADER] != self._identity.fingerprint:
            raise self._identity_error()
        if response.status in (422, 500):
            raise RetrievalError(f"{self._url}: {_detail(response)}")
        if response.status != 200:
            raise self._unavailable(f"status {response.status}, expected 200 ({_detail(response)})")
        return response

    def _request_once(self, method: str, path: str, body: bytes | None) -> HttpReply:
        headers = {"content-type": "application/json"} if body is not None else None
        latest = perf_counter() + _LONGEST
        try:
            with self._http.stream(method, path, content=body, headers=headers) as response:
                content = BoundedBody(response.headers, MAX_ANSWER)
                for part in response.iter_raw():
                    content.add(part)
                    if perf_counter() > latest:
                        raise _NoAnswer(f"no complete response within {_LONGEST:g} s")
                reply = HttpReply(response.status_code, response.headers, content.finish())
        except httpx.TransportError as error:
            raise _NoAnswer(one_line(str(error), _SHOWN) or type(error).__name__) from None
        except BodyError as error:
            raise self._unavailable(f"the response cannot be read: {error}") from None
        except (httpx.InvalidURL, UnicodeError) as error:
            raise self._unavailable(f"the address cannot be used ({error})") from None
        if reply.status in _RETRIED_STATUS:
            raise _NoAnswer(f"status {reply.status}")
        return reply

    def _identity_error(self) -> RetrievalUnavailable:
        try:
            about = _json(self._request_once("GET", "/health", None))
            differences = self._identity.differences(about["identity"])
        except (_NoAnswer, InputError, LookupError, TypeError, AttributeError):
            differences = []
        return self._unavailable(
            "its retrieval differs from this configuration"
            + (f" ({one_line('; '.join(differences), _SHOWN)})" if differences else "")
            + "; start it with the same configuration and data, or name another retrieval.service"
        )

    def _unavailable(self, problem: str) -> RetrievalUnavailable:
        return RetrievalUnavailable(
            f"retrieval.service {self._url}: {problem}. Then run this stage again; finished work "
            "is kept"
        )


def _json(response: HttpReply) -> Any:
    """The JSON value of a response. Raises InputError."""
    return parse_json(response.body.decode("utf-8", "replace"), "the response")


def _detail(response: HttpReply) -> str:
    """The reason that the service gives for a refusal."""
    try:
        detail = _json(response)["detail"]
    except (InputError, LookupError, TypeError):
        return f"status {response.status}"
    return one_line(str(detail), _SHOWN)
