"""Retrieval over HTTP with a fake retriever behind the service."""

import json
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager, suppress
from dataclasses import replace

import httpx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pipeline.core.errors import ConfigError, InputError, RetrievalError, RetrievalUnavailable
from pipeline.core.records import ContextItem
from pipeline.core.text import visible
from pipeline.knowledge.retrieval.base import Query
from pipeline.knowledge.retrieval.remote import client as client_module
from pipeline.knowledge.retrieval.remote.client import RemoteRetriever
from pipeline.knowledge.retrieval.remote.server import bind_socket
from pipeline.knowledge.retrieval.remote.wire import (
    HEADER,
    MAX_BODY,
    MAX_QUERIES,
    MAX_TEXT,
    PART,
    TOKEN,
    decode_answers,
    decode_queries,
    encode_answers,
    encode_queries,
)
from tests.retrieval.served import IDENTITY, PLAIN, FakeRetriever, answering, served
from tests.waiting import LIMIT, wait_until

WHO, WHERE = Query("who?", ("Ada", "Bob")), Query("where?")
TEXT = st.text(st.characters(codec="utf-8"), min_size=1)
ITEM = st.builds(
    ContextItem,
    st.sampled_from(["chunk", "triplet"]),
    TEXT,
    TEXT,
    TEXT,
    st.floats(allow_nan=False, allow_infinity=False),
)


@pytest.fixture(scope="module")
def address():
    with served(FakeRetriever(), names=("index-host",)) as running:
        yield running.url


def posted(url, body, **headers):
    return httpx.post(f"{url}/retrieve", content=body, headers=headers, **PLAIN)


def health(url, **headers):
    return httpx.get(f"{url}/health", headers=headers, **PLAIN)


@contextmanager
def holding(retriever, ask):
    """A service whose retriever holds what ``ask`` asks of its url until ``release`` is called.

    Yields the url, a pool for further requests, the answer to the first one, and ``release``, which
    waits until the service has counted so many requests or queries.
    """
    retriever.gate = threading.Event()
    with served(retriever) as running, ThreadPoolExecutor(4) as pool:

        def counted(**counts):
            found = health(running.url).json()["served"]
            return all(found[name] >= count for name, count in counts.items())

        def release(**counts):
            wait_until(lambda: counted(**counts))
            retriever.gate.set()

        first = pool.submit(ask, running.url)
        wait_until(lambda: retriever.batches)
        yield running.url, pool, first, release


@settings(max_examples=25)
@given(st.lists(st.builds(Query, TEXT, st.lists(TEXT).map(tuple))), st.lists(st.lists(ITEM)))
def test_queries_and_answers_round_trip_through_json(queries, answers):
    assert decode_queries(encode_queries(queries)) == queries
    assert decode_answers(encode_answers(answers)) == answers


@given(st.binary(max_size=64) | st.lists(st.lists(st.dictionaries(TEXT, TEXT | st.floats(), max_size=3), max_size=3), max_size=3)
       .map(lambda value: json.dumps(value).encode()))  # fmt: skip
def test_any_bytes_are_decoded_or_refused(body):
    for decode in (decode_queries, decode_answers):
        with suppress(InputError):
            assert isinstance(decode(body), list)


def test_client_returns_the_retrievers_items_in_order(address):
    with closing(RemoteRetriever(address, IDENTITY)) as client:
        assert client.retrieve([WHO, WHERE, WHO]) == FakeRetriever().retrieve([WHO, WHERE, WHO])
        assert client.retrieve([]) == []
        assert client.timing["service"] > 0


@pytest.mark.parametrize(
    ("body", "words"),
    [
        ("[" * 100_000, "Invalid JSON"),
        ('{"subquery": "who?"}', "request: no queries; name texts in queries"),
        ('[{"subquery": "who?"}, {"entities": []}]', "queries[1].subquery: Field required"),
        ('[{"subquery": 5}]', "queries[0].subquery: Input should be a valid string"),
        ('{"queries": "who?"}', "request.queries: Input should be a valid"),
        ('[{"subquery": "q", "k": 3}]', "queries[0].k: Extra inputs are not permitted"),
        (json.dumps([{"subquery": "q"}] * (MAX_QUERIES + 1)), "at most 4096 items"),
    ],
)
def test_malformed_request_gets_status_422_and_a_reason(address, body, words):
    answer = posted(address, body)
    assert answer.status_code == 422
    assert words in answer.json()["detail"]
    assert answer.headers[HEADER] == IDENTITY.fingerprint


USABLE = st.text(st.characters(codec="utf-8"), min_size=1, max_size=5).filter(str.strip)
UNUSABLE = st.sampled_from(["", "  ", "\n", None, 5, 0.5, True, [], {}, ["who?"]])


@settings(max_examples=25, deadline=None)
@given(st.lists(USABLE | UNUSABLE, min_size=1, max_size=6))
def test_a_bad_query_of_a_batch_finds_nothing_and_the_others_are_answered(address, queries):
    """Trainers send all their roll-outs at once, and small policies write empty queries."""
    answer = posted(address, json.dumps({"queries": queries, "topk": 1}))
    assert answer.status_code == 200
    usable = [isinstance(query, str) and query.strip() != "" for query in queries]
    assert [len(found) for found in answer.json()["result"]] == list(map(int, usable))
    own = [{"subquery": query if isinstance(query, str) else ""} for query in queries]
    found = decode_answers(posted(address, json.dumps(own)).content)
    assert [len(items) for items in found] == [2 * one for one in usable]


def test_what_exceeds_the_limits_of_a_query_is_cut_off(address):
    long = "q" * (MAX_TEXT + 1)
    own = [{"subquery": long, "entities": [long] * 300}, {"subquery": "who?"}]
    found = decode_answers(posted(address, json.dumps(own)).content)
    assert [len(items[0].id) for items in found] == [MAX_TEXT + 2, 6]
    assert len(found[0][1].text) == 256 * MAX_TEXT + 255
    trainers = posted(address, json.dumps({"queries": [long, "who?"]})).json()["result"]
    assert [len(items[0]["id"]) for items in trainers] == [MAX_TEXT + 2, 6]


@pytest.mark.parametrize(
    ("error", "problem", "logged"),
    [
        (RetrievalError("no index"), "no index", []),
        (  # tokenizers written in Rust raise no Exception
            BaseException("PanicException: index out of bounds"),
            "retrieval failed: BaseException",
            ["query 'bad': BaseException: PanicException: index out of bounds"],
        ),
    ],
)
def test_a_query_at_which_the_retriever_fails_or_crashes_fails_alone(
    error, problem, logged, caplog
):
    """A crash is one line in the log."""
    with holding(
        FakeRetriever(bad={"bad": error}), lambda url: posted(url, '{"query": "first"}')
    ) as held:
        url, pool, first, release = held
        clients = [RemoteRetriever(url, IDENTITY) for _ in range(2)]
        bad = pool.submit(clients[0].retrieve, [Query("bad", ("bad",))])
        good = pool.submit(clients[1].retrieve, [WHO])
        release(queries=3)
        assert first.result().status_code == 200
        assert good.result() == FakeRetriever().retrieve([WHO])
        with pytest.raises(RetrievalError, match=rf"{problem}\W*$") as caught:
            bad.result()
        assert not isinstance(caught.value, RetrievalUnavailable)  # the stage goes on
        for client in clients:
            client.close()
    assert [record.getMessage().partition(" (")[0] for record in caplog.records] == logged


def test_a_request_comes_between_the_parts_of_a_large_one():
    retriever = FakeRetriever()
    large = json.dumps({"queries": [f"q{number}" for number in range(1000)]})
    with holding(retriever, lambda url: posted(url, large)) as (url, pool, first, release):
        small = pool.submit(posted, url, '{"query": "small"}')
        release(requests=2)
        assert small.result().status_code == 200
        assert len(first.result().json()["result"]) == 1000
    assert [len(batch) for batch in retriever.batches] == [256, 1, 256, 256, 232]


def test_concurrent_requests_are_batched_and_deduplicated():
    queries_of = [
        [WHO, Query("a")],
        [Query("a"), Query("b")],
        [Query("b"), Query("c"), Query("d")],
    ]
    retriever = FakeRetriever()
    with holding(retriever, lambda url: posted(url, '{"query": "first"}')) as held:
        url, pool, _, release = held
        clients = [RemoteRetriever(url, IDENTITY) for _ in queries_of]
        asked = [pool.submit(c.retrieve, q) for c, q in zip(clients, queries_of, strict=True)]
        release(queries=8)
        assert [future.result() for future in asked] == [
            FakeRetriever().retrieve(queries) for queries in queries_of
        ]
        for client in clients:
            client.close()
    assert [len(batch) for batch in retriever.batches] == [1, 5]


@pytest.mark.parametrize(
    ("most", "queries"),
    [
        (MAX_BODY, [Query(f"q{number}") for number in range(PART + 9)]),
        (2 * MAX_TEXT, [Query("a" * MAX_TEXT), Query("b" * MAX_TEXT)]),
    ],
)
def test_the_client_divides_what_exceeds_the_limits_of_a_request(most, queries, monkeypatch):
    monkeypatch.setattr(client_module, "MAX_BODY", most)
    with served(FakeRetriever()) as running:
        with closing(RemoteRetriever(running.url, IDENTITY)) as client:
            assert client.retrieve(queries) == FakeRetriever().retrieve(queries)
        assert health(running.url).json()["served"]["requests"] == 2


@pytest.mark.parametrize(
    "host",
    ["evil.example:8765", "127.0.0.1.evil.example", "127.0.0.1@evil.example", "localhost.", "[::1",
     ":", "127.0.0.1:x"],
)  # fmt: skip
def test_a_name_that_a_page_of_another_site_may_have_chosen_is_refused(address, host):
    """DNS rebinding: a page reaches the service by a name that its site points at 127.0.0.1."""
    for answer in (
        health(address, host=host),
        posted(address, '[{"subquery": "who?"}]', host=host),
    ):
        assert answer.status_code == 421
        assert "--allow-host" in answer.json()["detail"]
        assert "who?" not in answer.text
        assert "identity" not in answer.text


@pytest.mark.parametrize(
    "host", ["localhost:8765", "127.0.0.1", "[::1]:8765", "10.0.0.7:8765", "Index-Host:8765"]
)
def test_addresses_and_allowed_names_are_answered(address, host):
    assert health(address, host=host).status_code == 200


@pytest.mark.parametrize("token", ["secret\r", "secret token", "sécret", "\n", " secret"])
def test_a_token_that_cannot_be_sent_is_refused_and_not_shown(token, monkeypatch, caplog):
    with served(FakeRetriever()) as running:
        monkeypatch.setenv("STEEP_TOKEN", token)
        with pytest.raises(
            ConfigError, match=f"STEEP_TOKEN is empty, or .* of {running.url}"
        ) as told:
            RemoteRetriever(running.url, IDENTITY, patience=0.1)
    assert token.strip() == "" or token not in str(told.value) + caplog.text


def test_a_service_with_a_token_answers_only_clients_that_send_it(monkeypatch):
    with served(FakeRetriever(), token="secret") as running:
        for sent, status in ((None, 401), ("Bearer other", 401), ("Bearer secret", 200)):
            headers = {} if sent is None else {"authorization": sent}
            assert health(running.url, **headers).status_code == status
        monkeypatch.setenv(TOKEN, "secret")
        with closing(RemoteRetriever(running.url, IDENTITY, patience=LIMIT)) as client:
            assert len(client.retrieve([WHO])) == 1


def test_missing_service_raises_retrieval_unavailable_with_the_start_command():
    with bind_socket("127.0.0.1", 0) as free:
        port = free.getsockname()[1]
    message = (
        rf"127.0.0.1:{port}: no answer for 0.3 s .*serve --policy none --config FILE --port {port}"
    )
    with pytest.raises(RetrievalUnavailable, match=message):
        RemoteRetriever(f"http://127.0.0.1:{port}", IDENTITY, patience=0.3)


def test_client_waits_for_a_restarted_service():
    with served(FakeRetriever()) as running:
        client = RemoteRetriever(running.url, IDENTITY, patience=LIMIT)
    with ThreadPoolExecutor(1) as pool:
        answer = pool.submit(client.retrieve, [WHO])
        with served(FakeRetriever(), port=running.port):
            assert answer.result() == FakeRetriever().retrieve([WHO])
    client.close()


def test_another_index_is_rejected_at_the_start_and_during_a_run():
    other = replace(IDENTITY, index="index-2", settings={"top_k": 6, "tau": 0.2})
    message = r"its retrieval differs .*\(index index-2, here index-1; settings.top_k 6, here 5\)"
    with served(FakeRetriever()) as running:
        client = RemoteRetriever(running.url, IDENTITY)
    with served(FakeRetriever(), other, port=running.port) as running:
        with pytest.raises(RetrievalUnavailable, match=message):
            client.retrieve([WHO])
        with pytest.raises(RetrievalUnavailable, match=message):
            RemoteRetriever(running.url, IDENTITY)
    client.close()


NAMED = {HEADER: IDENTITY.fingerprint}
ITEM_JSON = '[[{"kind": "chunk", "id": "c", "title": "t", "text": "x", "score": %s}]]'


@pytest.mark.parametrize(
    ("status", "body", "words"),
    [
        (421, '{"detail": "the host"}', r"status 421, expected 200 \(the host\)"),
        (200, ITEM_JSON % "NaN", r"answers\[0\]\[0\].score: Input should be a finite"),
        (200, "[[], []]", "2 answers for 1 queries"),
        (422, '{"detail": "\\u001b[2J\\u202e' + "a" * 999 + '"}', r"␛\[2J\\u202ea+ …$"),
        (500, "[" * 1000, "status 500$"),
        (503, "", "no answer for 0.2 s .*503"),
    ],
)
def test_a_server_that_misbehaves_is_a_retrieval_error_of_one_sentence(status, body, words):
    with answering(status, body, NAMED) as server:
        client = RemoteRetriever(server.url, IDENTITY, patience=0.2)
        with pytest.raises(RetrievalError, match=words) as caught:
            client.retrieve([WHO])
        client.close()
    assert visible(str(caught.value)) == str(caught.value)
    assert "\n" not in str(caught.value)
