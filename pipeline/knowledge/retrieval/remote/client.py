"""Client of the retrieval service: the retriever of a run with ``retrieval.service``.

Input: queries. Output: the same items that the index returns in process. During an outage the
client retries with growing pauses for ``retrieval.service_patience`` seconds. After that, or when
the service has another index or other settings than this configuration, RetrievalUnavailable stops
the stage, so that no trajectory continues without its documents. Every response is checked, because
a service can be restarted with another index during a run, and another server may have its address.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Sequence
from dataclasses import asdict
from time import perf_counter

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
from pipeline.core.input_files import differing, parse_json
from pipeline.core.records import ContextItem
from pipeline.core.text import one_line
from pipeline.knowledge.retrieval.base import Query
from pipeline.knowledge.retrieval.fingerprint import RetrievalIdentity
from pipeline.knowledge.retrieval.remote.wire import (
    HEADER,
    MAX_BODY,
    PART,
    TOKEN,
    decode_answers,
    encode_queries,
    usable_token,
)

_TIMEOUT = httpx.Timeout(10.0, read=300.0)  # seconds; a batch may wait for other clients' batches
_SHOWN = 300  # characters of the server's words in a message
_RETRIED_STATUS = frozenset({429, 502, 503, 504})  # busy, or a proxy without its service


class RemoteRetriever:
    """A retriever that sends queries to a retrieval service over one open connection."""

    def __init__(self, url: str, identity: RetrievalIdentity, *, patience: float = 60.0) -> None:
        """Raises RetrievalUnavailable when there is no service or its identity differs.

        ``identity`` is the expected retrieval, ``patience`` the seconds of retries during an
        outage. Raises ConfigError for a token that cannot be sent: messages of httpx would show it.
        """
        self._url = url
        self._identity = identity
        self._patience = patience
        self._seconds = 0.0
        # trust_env=False: proxies from environment variables do not reach services in a local
        # network.
        token = os.environ.get(TOKEN)
        headers = {"Content-Type": "application/json"}
        if token:
            token = usable_token(token, f"set it to the token of {url}, or unset it")
            headers["Authorization"] = f"Bearer {token}"
        self._http = httpx.Client(base_url=url, timeout=_TIMEOUT, trust_env=False, headers=headers)
        self._retrying = Retrying(
            retry=retry_if_exception_type(httpx.HTTPError),
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
            distinct = list(dict.fromkeys(queries))
            answers: dict[Query, list[ContextItem]] = {}
            for first in range(0, len(distinct), PART):
                part = distinct[first : first + PART]
                answers.update(zip(part, self._items(part), strict=True))
            return [list(answers[query]) for query in queries]
        finally:
            self._seconds += perf_counter() - start

    def close(self) -> None:
        """Close the connection."""
        self._http.close()

    def _items(self, queries: Sequence[Query]) -> list[list[ContextItem]]:
        body = encode_queries(queries)
        if len(body) > MAX_BODY and len(queries) > 1:
            half = len(queries) // 2
            return self._items(queries[:half]) + self._items(queries[half:])
        response = self._request("POST", "/retrieve", body)
        try:
            answers = decode_answers(response.content)
        except InputError as error:
            problem = one_line(str(error), _SHOWN)
            raise self._unavailable(f"malformed response ({problem}); check its version") from None
        if len(answers) != len(queries):
            raise self._unavailable(
                f"{len(answers)} answers for {len(queries)} queries; check its version"
            )
        return answers

    def _request(self, method: str, path: str, body: bytes | None = None) -> httpx.Response:
        """The response with status 200 of the expected retrieval, after retries."""
        try:
            response: httpx.Response = self._retrying(self._request_once, method, path, body)
        except (httpx.HTTPError, httpx.InvalidURL, UnicodeError) as error:
            reason = one_line(str(error).partition("\n")[0], _SHOWN) or type(error).__name__
            raise self._unavailable(
                f"no answer for {self._patience:g} s ({reason}); start it with: "
                f"steep serve --policy none --config FILE --port {self._http.base_url.port or 80}, "
                "where FILE is this configuration"
            ) from None
        status = response.status_code
        if HEADER not in response.headers:
            raise self._unavailable(
                f"status {status} without the header {HEADER}; the address is not a "
                "retrieval service, or the service failed; read its log"
            )
        if response.headers[HEADER] != self._identity.fingerprint:
            raise self._identity_error()
        if status in (422, 500):
            raise RetrievalError(f"{self._url}: {_detail(response)}")
        if status != 200:
            raise self._unavailable(f"status {status}, expected 200 ({_detail(response)})")
        return response

    def _request_once(self, method: str, path: str, body: bytes | None) -> httpx.Response:
        response = self._http.request(method, path, content=body)
        if response.status_code in _RETRIED_STATUS:
            response.raise_for_status()
        return response

    def _identity_error(self) -> RetrievalUnavailable:
        try:
            about = parse_json(self._http.get("/health").text, "the response")
            found = differing(about["identity"], asdict(self._identity))
            differences = [f"{name} {theirs}, here {ours}" for name, theirs, ours in found]
        except (httpx.HTTPError, InputError, LookupError, TypeError, AttributeError):
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


def _detail(response: httpx.Response) -> str:
    """The reason that the service gives for a refusal."""
    try:
        detail = parse_json(response.text, "the response")["detail"]
    except (InputError, LookupError, TypeError):
        return f"status {response.status_code}"
    return one_line(str(detail), _SHOWN)
