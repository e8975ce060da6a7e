"""Retrieval over HTTP with a fake retriever behind the service."""

import gzip
import json
import resource
import socket
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, suppress
from dataclasses import replace

import httpx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from starlette.testclient import TestClient

from pipeline.core.errors import InputError, RetrievalError, RetrievalUnavailable
from pipeline.core.records import ContextItem
from pipeline.core.text import visible
from pipeline.retrieval.base import Query
from pipeline.retrieval.remote.client import RemoteRetriever
from pipeline.retrieval.remote.connections import ServiceConnection
from pipeline.retrieval.remote.server import bind_socket, create_app
from pipeline.retrieval.remote.wire import (
    HEADER,
    MAX_BODY,
    MAX_ENTITIES,
    MAX_QUERIES,
    MAX_TEXT,
    decode_answers,
    decode_queries,
    encode_answers,
    encode_queries,
)
from tests.llm.raw_endpoint import RawEndpoint, reply, sends
from tests.retrieval import malformed_hosts
from tests.retrieval.served import IDENTITY, FakeRetriever, Running, served
from tests.waiting import LIMIT

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
    with served(FakeRetriever()) as running:
        yield running.url


def posted(url, body):
    return httpx.post(f"{url}/retrieve", content=body, trust_env=False, timeout=LIMIT)


@settings(max_examples=25)
@given(st.lists(st.builds(Query, TEXT, st.lists(TEXT).map(tuple))), st.lists(st.lists(ITEM)))
def test_queries_and_answers_round_trip_through_json(queries, answers):
    assert decode_queries(encode_queries(queries)) == queries
    assert decode_answers(encode_answers(answers)) == answers


@given(st.binary(max_size=64) | st.lists(st.lists(st.dictionaries(TEXT, TEXT | st.floats())))
       .map(lambda value: json.dumps(value).encode()))  # fmt: skip
def test_any_bytes_are_decoded_or_refused(body):
    for decode in (decode_queries, decode_answers):
        with suppress(InputError):
            assert isinstance(decode(body), list)


def test_client_returns_the_retrievers_items_in_order(address):
    client = RemoteRetriever(address, IDENTITY)
    assert client.retrieve([WHO, WHERE, WHO]) == FakeRetriever().retrieve([WHO, WHERE, WHO])
    assert client.retrieve([]) == []
    assert client.timing["service"] > 0
    client.close()


def test_request_and_answer_are_plain_json_lists(address):
    answer = posted(address, '[{"subquery": "who?", "entities": ["Ada"]}, {"subquery": "where?"}]')
    assert answer.status_code == 200
    assert answer.json()[0] == [
        {"kind": "chunk", "id": "c-who?", "title": "T", "text": "on who?", "score": 1 / 3},
        {"kind": "triplet", "id": "t-who?", "title": "", "text": "Ada", "score": 1e-9},
    ]
    assert answer.json()[1][0]["id"] == "c-where?"
    assert answer.headers[HEADER] == IDENTITY.fingerprint


@pytest.mark.parametrize(
    ("body", "words"),
    [
        ("", "Invalid JSON"),
        ("[" * 100_000, "Invalid JSON"),
        (b'[{"subquery": "\xff"}]', "Invalid JSON"),
        ('{"subquery": "who?"}', "queries: Input should be a valid array"),
        ('[{"subquery": "who?"}, {"entities": []}]', "queries[1].subquery: Field required"),
        ('[{"subquery": ""}]', "queries[0].subquery: String should have at least 1 character"),
        ('[{"subquery": 7}]', "queries[0].subquery: Input should be a valid string"),
        ('[{"subquery": "q", "entities": "Ada"}]', "queries[0].entities: Input should be a valid"),
        ('[{"subquery": "q", "entities": [null]}]', "queries[0].entities[0]: Input should be a"),
        ('[{"subquery": "q", "k": 3}]', "queries[0].k: Extra inputs are not permitted"),
        (json.dumps([{"subquery": "q"}] * (MAX_QUERIES + 1)), "at most 256 items"),
        (json.dumps([{"subquery": "q" * (MAX_TEXT + 1)}]), "at most 20000 characters"),
        (
            json.dumps([{"subquery": "q", "entities": ["e"] * (MAX_ENTITIES + 1)}]),
            "queries[0].entities: Tuple should have at most 256 items",
        ),
        (
            json.dumps([{"subquery": "q", "entities": ["e"] * 200}] * 3),
            "queries: 600 entities in one request; expected at most 512; send fewer queries",
        ),
        (json.dumps([{"subquery": 7}] * 5), "; and 2 more"),
        (
            b" " * (MAX_BODY + 1),
            "has 16,777,217 bytes; expected at most 16,777,216; send fewer queries",
        ),
    ],
)
def test_malformed_request_gets_status_422_and_a_reason(address, body, words):
    answer = posted(address, body)
    assert answer.status_code == 422
    assert words in answer.json()["detail"]
    assert answer.headers[HEADER] == IDENTITY.fingerprint


def test_health_reports_identity_sizes_and_counts():
    with served(FakeRetriever()) as running:
        posted(running.url, '[{"subquery": "who?"}, {"subquery": "who?"}]')
        about = httpx.get(f"{running.url}/health", trust_env=False).json()
    assert about["fingerprint"] == IDENTITY.fingerprint
    assert about["identity"]["index"] == "index-1"
    assert about["rows"] == {"chunks": 2}
    assert about["served"] == {"requests": 1, "queries": 2, "retrieved": 1, "batches": 1}


def test_concurrent_requests_are_batched_and_deduplicated():
    gate = threading.Event()
    retriever = FakeRetriever(gate)
    with served(retriever, max_batch=3) as running, ThreadPoolExecutor(4) as pool:
        clients = [RemoteRetriever(running.url, IDENTITY) for _ in range(4)]
        first = pool.submit(clients[0].retrieve, [WHO])
        while not retriever.batches:  # until the first is being retrieved
            assert not first.done()
        queries_of = [
            [WHO, Query("a")],
            [Query("a"), Query("b")],
            [Query("b"), Query("c"), Query("d")],
        ]
        others = [pool.submit(c.retrieve, q) for c, q in zip(clients[1:], queries_of, strict=True)]
        served_so_far = {"queries": 0}
        while served_so_far["queries"] < 8:  # until all of them wait
            served_so_far = httpx.get(f"{running.url}/health", trust_env=False).json()["served"]
        gate.set()
        assert first.result() == FakeRetriever().retrieve([WHO])
        assert [future.result() for future in others] == [
            FakeRetriever().retrieve(queries) for queries in queries_of
        ]
        for client in clients:
            client.close()
    assert [len(batch) for batch in retriever.batches] == [1, 3, 1]
    assert len({query for batch in retriever.batches for query in batch}) == 5


def test_a_large_request_delays_others_by_the_batch_that_runs():
    """The large request is taken in parts, and a later client's query is in the next part."""
    gate = threading.Event()
    retriever = FakeRetriever(gate)
    large = [Query(f"q{number}", tuple("abc")) for number in range(6)]
    with served(retriever, max_batch=8) as running, ThreadPoolExecutor(2) as pool:
        clients = [RemoteRetriever(running.url, IDENTITY) for _ in range(2)]
        first = pool.submit(clients[0].retrieve, large)
        while not retriever.batches:
            assert not first.done()
        second = pool.submit(clients[1].retrieve, [WHERE, large[-1]])
        while httpx.get(f"{running.url}/health", trust_env=False).json()["served"]["queries"] < 8:
            pass
        gate.set()
        assert second.result() == FakeRetriever().retrieve([WHERE, large[-1]])
        assert first.result() == FakeRetriever().retrieve(large)
        for client in clients:
            client.close()
    assert retriever.batches[:2] == [large[:2], [large[2], WHERE]]  # 8 texts, then 5 of at most 8
    assert large[-1] in retriever.batches[2]  # in the turn of the client that asked second
    assert sum(map(len, retriever.batches)) == 7


def test_the_client_divides_what_exceeds_the_limits_of_a_request():
    queries = [Query(f"q{number}", tuple(map(str, range(200)))) for number in range(5)]
    queries += [Query(f"p{number}") for number in range(300)]
    retriever = FakeRetriever()
    with served(retriever) as running:
        client = RemoteRetriever(running.url, IDENTITY)
        assert client.retrieve(queries) == FakeRetriever().retrieve(queries)
        client.close()
        about = httpx.get(f"{running.url}/health", trust_env=False).json()
    assert about["served"]["requests"] == 4  # of 2, 2, 256 and 45 queries


@pytest.mark.parametrize(
    "host",
    ["evil.example", "evil.example:8765", "127.0.0.1.evil.example", "127.0.0.1@evil.example",
     "localhost.", "[", "[::1", "::1", "]", ":", "127.0.0.1:x"],
)  # fmt: skip
@pytest.mark.parametrize("path", ["/retrieve", "/health"])
def test_a_name_that_a_page_of_another_site_may_have_chosen_is_refused(address, host, path):
    """DNS rebinding: a page reaches the service by a name that its site points at 127.0.0.1."""
    sent = {"content": '[{"subquery": "who?"}]'} if path == "/retrieve" else {}
    answer = httpx.request(
        "POST" if sent else "GET",
        f"{address}{path}",
        headers={"host": host},
        trust_env=False,
        timeout=LIMIT,
        **sent,
    )
    assert answer.status_code == 421
    assert "--allow-host" in answer.json()["detail"]
    assert "who?" not in answer.text
    assert "identity" not in answer.text


@pytest.mark.parametrize(
    "host", ["localhost:8765", "127.0.0.1", "[::1]:8765", "10.0.0.7:8765", "Index-Host:8765"]
)
def test_addresses_and_allowed_names_are_answered(host):
    with served(FakeRetriever(), names=("index-host",)) as running:
        answer = httpx.get(f"{running.url}/health", headers={"host": host}, trust_env=False)
    assert answer.status_code == 200


def test_generated_hosts_are_answered_or_refused():
    app = create_app(FakeRetriever(), IDENTITY, {}, names=malformed_hosts.NAMES)
    with TestClient(app) as client:
        found = [
            malformed_hosts.problem_of(host, client, "/health")
            for host in malformed_hosts.hosts(0, 300)
        ]
    assert [problem for problem in found if problem] == []


def test_failing_query_fails_only_its_own_request():
    retriever = FakeRetriever(bad=("bad",))
    gate = retriever.gate = threading.Event()
    with served(retriever) as running, ThreadPoolExecutor(3) as pool:
        clients = [RemoteRetriever(running.url, IDENTITY) for _ in range(3)]
        first = pool.submit(clients[0].retrieve, [WHERE])
        while not retriever.batches:
            assert not first.done()
        bad = pool.submit(clients[1].retrieve, [Query("bad")])
        good = pool.submit(clients[2].retrieve, [WHO])
        while httpx.get(f"{running.url}/health", trust_env=False).json()["served"]["queries"] < 3:
            pass
        gate.set()
        assert good.result() == FakeRetriever().retrieve([WHO])
        with pytest.raises(RetrievalError, match="retrieval failed") as caught:
            bad.result()
        assert not isinstance(caught.value, RetrievalUnavailable)  # the stage goes on
        for client in clients:
            client.close()


def test_internal_error_of_the_service_raises_retrieval_unavailable():
    class Broken(FakeRetriever):
        def retrieve(self, queries):
            raise ZeroDivisionError

    with served(Broken()) as running:
        client = RemoteRetriever(running.url, IDENTITY)
        with pytest.raises(RetrievalUnavailable, match="status 500 without the header"):
            client.retrieve([WHO])
        client.close()


def test_missing_service_raises_retrieval_unavailable_with_the_start_command():
    with bind_socket("127.0.0.1", 0) as free:
        port = free.getsockname()[1]
    message = (
        rf"127.0.0.1:{port}: no answer for 0.3 s .*serve-retrieval --config FILE --port {port}"
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


def test_server_that_is_no_retrieval_service_is_rejected():
    async def elsewhere(scope, receive, send):
        await send({"type": "http.response.start", "status": 404, "headers": []})
        await send({"type": "http.response.body", "body": b"no such page"})

    running = Running(elsewhere)
    running.thread.start()
    try:
        with pytest.raises(RetrievalUnavailable, match="status 404 without the header"):
            RemoteRetriever(running.url, IDENTITY, patience=LIMIT)
    finally:  # otherwise the server's thread would keep a failed test run alive
        running.end()
        running.thread.join(LIMIT)
        running.socket.close()


HALF_SENT = (
    b"",
    b"POST /retr",
    b"POST /retrieve HTTP/1.1\r\nhost: [::1]\r\ncontent-le",
    b'POST /retrieve HTTP/1.1\r\nhost: [::1]\r\ncontent-length: 999\r\n\r\n[{"subquery": ',
    b"POST /retrieve HTTP/1.1\r\nhost: [::1]\r\ntransfer-encoding: chunked\r\n\r\n9\r\n[",
)


def test_half_sent_requests_do_not_keep_others_from_being_served():
    """1,100 of them: more than the connections that the server accepts."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(hard, 20_000), hard))
    with served(FakeRetriever()) as running, ExitStack() as stack:
        for number in range(1100):
            sender = stack.enter_context(
                socket.create_connection(("127.0.0.1", running.port), LIMIT)
            )
            sender.sendall(HALF_SENT[number % len(HALF_SENT)])
        client = RemoteRetriever(running.url, IDENTITY, patience=LIMIT)
        assert client.retrieve([WHO]) == FakeRetriever().retrieve([WHO])
        client.close()


def test_a_request_that_does_not_arrive_in_time_is_closed():
    class Impatient(ServiceConnection):
        read_seconds = 0.2

    with served(FakeRetriever(), connection=Impatient) as running, ExitStack() as stack:
        senders = [
            stack.enter_context(socket.create_connection(("127.0.0.1", running.port), LIMIT))
            for _ in HALF_SENT
        ]
        for sender, part in zip(senders, HALF_SENT, strict=True):
            sender.sendall(part)
        for sender in senders:
            with suppress(ConnectionResetError):
                assert sender.recv(100) == b""


def test_a_slow_retrieval_is_not_cut_off():
    """The limit is for the request; its answer may take longer."""

    class Impatient(ServiceConnection):
        read_seconds = 2.0

    gate = threading.Event()
    with served(FakeRetriever(gate), connection=Impatient) as running:
        threading.Timer(3.0, gate.set).start()
        assert posted(running.url, '[{"subquery": "who?"}]').status_code == 200


@pytest.mark.parametrize(
    "sent",
    [
        b"SSH-2.0-OpenSSH_9.6\r\n\r\n",
        b"GET / HTTP/1.1\r\nx: " + b"a" * 20_000,
        b"POST /retrieve HTTP/1.1\r\nhost: [::1]\r\ncontent-length: -1\r\n\r\n",
        b"POST /retrieve HTTP/1.1\r\ncontent-length: 2\r\n\r\n[]",  # without a host
        b"\x16\x03\x01" + b"\x00" * 200,
    ],
)
def test_bytes_that_are_not_http_get_status_400_and_a_reason(address, sent):
    with socket.create_connection(("127.0.0.1", int(address.rpartition(":")[2])), LIMIT) as sender:
        sender.sendall(sent)
        answer = b"".join(iter(lambda: sender.recv(4096), b""))
    assert answer.startswith(b"HTTP/1.1 400 ")
    assert json.loads(answer.partition(b"\r\n\r\n")[2])["detail"]


def test_garbage_within_a_request_ends_its_connection_only(address, caplog):
    port = int(address.rpartition(":")[2])
    start = b"POST /retrieve HTTP/1.1\r\nhost: [::1]\r\ntransfer-encoding: chunked\r\n\r\n"
    with socket.create_connection(("127.0.0.1", port), LIMIT) as sender:
        sender.sendall(start + b"zz\r\n")
        assert sender.recv(100) == b""
    assert posted(address, "[]").status_code == 200
    assert "Traceback" not in caplog.text


@pytest.mark.parametrize(
    ("body", "headers", "words"),
    [
        (gzip.compress(b"[]", mtime=0), {"content-encoding": "gzip"}, "compressed as 'gzip'"),
        (b"a=b", {"content-type": "multipart/form-data; boundary=x"}, "Invalid JSON"),
        ("[]".encode("utf-16"), {"content-type": "application/json; charset=utf-16"}, "Invalid"),
        (b'[{"subquery": NaN}]', {}, "should be a valid string"),
        (b'[{"subquery": ' + b"9" * 5000 + b"}]", {}, "Invalid JSON: number out of range"),
        (b'[{"subquery": "\\ud800"}]', {}, "Invalid JSON"),
    ],
)
def test_a_body_in_another_format_gets_status_422(address, body, headers, words):
    answer = httpx.post(f"{address}/retrieve", content=body, headers=headers, trust_env=False)
    assert answer.status_code == 422
    assert words in answer.json()["detail"]


NAMED = f"{HEADER}: {IDENTITY.fingerprint}"
ITEM_JSON = '{"kind": "chunk", "id": "c", "title": "t", "text": "x", "score": %s}'
QUOTED = '"1"'
HOSTILE = {
    "refused host": (
        reply('{"detail": "the request names the host"}', 421, NAMED),
        r"status 421, expected 200 \(the request names the host\)",
    ),
    "redirect": (reply("", 307, "location: http://x/\u202e"), r"redirect to http://x/\\u202e"),
    "NaN": (reply(f"[[{ITEM_JSON % 'NaN'}]]", 200, NAMED), r"answers\[0\]\[0\].score: nan"),
    "infinity": (reply(f"[[{ITEM_JSON % '1e999'}]]", 200, NAMED), "score: inf"),
    "score a text": (reply(f"[[{ITEM_JSON % QUOTED}]]", 200, NAMED), "score: Input should be"),
    "huge score": (reply(f"[[{ITEM_JSON % ('9' * 5000)}]]", 200, NAMED), "number out of range"),
    "unknown kind": (
        reply(f"[[{ITEM_JSON % 1}]]".replace("chunk", "page"), 200, NAMED), "kind: Input should be",
    ),
    "missing field": (reply('[[{"kind": "chunk"}]]', 200, NAMED), "id: Field required"),
    "two answers": (reply("[[], []]", 200, NAMED), "2 answers for 1 queries"),
    "no list": (reply('{"a": 1}', 200, NAMED), "Input should be a valid"),
    "deep": (reply("[" * 100_000, 200, NAMED), "Invalid JSON"),
    "not UTF-8": (reply(b'[["\xff"]]', 200, NAMED), "Invalid JSON"),
    "half a character": (
        reply(f"[[{ITEM_JSON % 1}]]".replace("x", "\\ud800"), 200, NAMED), "Invalid JSON",
    ),
    "too long": (reply("[", 200, NAMED, "content-length: 999999999"), "longer than 268,435,456"),
    "gzip bomb": (
        reply(gzip.compress(bytes(2**28 + 9)), 200, NAMED, "content-encoding: gzip"),
        "longer than 268,435,456",
    ),
    "cut off": (reply("[[", 200, NAMED, "content-length: 9"), "no answer for 0.2 s .peer closed"),
    "not HTTP": (sends(b"\x1b[2J\r\n\r\n"), r"no answer for 0.2 s"),
    "reason with escapes": (
        reply('{"detail": "\\u001b[2J\\u202e' + "a" * 999 + '"}', 422, NAMED), r"␛\[2J\\u202ea+ …$",
    ),
    "reason a list": (reply('{"detail": [1]}', 500, NAMED), r": \[1\]$"),
    "deep reason": (reply("[" * 100_000, 500, NAMED), "status 500$"),
    "other identity": (
        reply("[]", 200, f"{HEADER}: \u202eother"), "its retrieval differs from this configuration",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", HOSTILE)
def test_a_server_that_misbehaves_is_a_retrieval_error_of_one_sentence(name):
    behave, words = HOSTILE[name]
    health = reply("{}", 200, NAMED)
    server = RawEndpoint(lambda request, before: behave if request != "None" else health)
    client = RemoteRetriever(server.url.removesuffix("/v1"), IDENTITY, patience=0.2)
    with pytest.raises(RetrievalError, match=words) as caught:
        client.retrieve([WHO])
    assert visible(str(caught.value)) == str(caught.value)
    assert "\n" not in str(caught.value)
    client.close()
    server.close()


def test_an_identity_that_cannot_be_compared_is_still_another_one():
    for identity in (
        "[" * 100_000,
        '{"identity": [1]}',
        '{"identity": {"index": "\\u001b[2J"}}',
        "[]",
    ):
        server = RawEndpoint(
            lambda request, before, body=identity: reply(body, 200, f"{HEADER}: other")
        )
        with pytest.raises(RetrievalUnavailable, match="its retrieval differs") as caught:
            RemoteRetriever(server.url.removesuffix("/v1"), IDENTITY, patience=0.2)
        assert "\x1b" not in str(caught.value)
        server.close()


def test_taken_port_raises_input_error(address):
    with pytest.raises(InputError, match=r"cannot listen on 127.0.0.1:\d+ .*choose another"):
        bind_socket("127.0.0.1", int(address.rpartition(":")[2]))
