"""The guard of all services: what it refuses, its limits, and how a service ends."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import httpx
import pytest
from fastapi import Request

from pipeline.core.errors import InputError
from pipeline.knowledge.retrieval.remote.guard import Traffic
from pipeline.knowledge.retrieval.remote.server import Server, bind_socket, guarded_app, serve
from pipeline.knowledge.retrieval.remote.wire import MAX_BODY
from tests.retrieval.served import PLAIN, Running
from tests.waiting import LIMIT, ending, wait_until

ROOT = Path(__file__).resolve().parents[2]


class Service:
    """An application that returns the length of a body; ``/wait`` answers when ``gate`` is set."""

    def __init__(self) -> None:
        self.app = guarded_app((), None, {"x-named": "yes"})
        self.gate = threading.Event()
        self.seen: list[str] = []
        self.app.post("/length")(self.length)
        self.app.get("/wait")(self.wait)
        self.app.get("/fail")(self.fail)

    @property
    def traffic(self) -> Traffic:
        traffic: Traffic = self.app.state.traffic
        return traffic

    async def length(self, request: Request) -> int:
        self.seen.append("length")
        return len(await request.body())

    def wait(self) -> str:
        assert self.gate.wait(LIMIT)
        return "answered"

    async def fail(self) -> None:
        raise KeyError("a\nreason of two lines")


def post(url: str, **sent: Any) -> httpx.Response:
    return httpx.post(f"{url}/length", **PLAIN, **sent)


def get(url: str, path: str, **headers: str) -> httpx.Response:
    return httpx.get(f"{url}/{path}", headers=headers, **PLAIN)


def refused(answer: httpx.Response, status: int, words: str) -> None:
    """A refusal has the forms of OpenAI and of the retrieval service."""
    body = answer.json()
    assert (answer.status_code, answer.headers["x-named"]) == (status, "yes")
    assert words in body["detail"]
    assert body["error"]["message"] == body["detail"]
    assert body["error"]["type"] == ("server_error" if status >= 429 else "invalid_request_error")


OTHER_SITES = [
    {"origin": "https://evil.example"}, {"origin": "null"}, {"origin": "http://[::1"}, {"origin": ""},
    {"origin": "http://127.0.0.1:1"}, {"sec-fetch-site": "cross-site"}, {"sec-fetch-site": "same-site"},
    {"sec-fetch-site": "cross-site", "sec-fetch-mode": "navigate"}, {"sec-fetch-site": "other"},
    {"sec-fetch-site": "none", "origin": "https://evil.example"},
]  # fmt: skip


@pytest.fixture(scope="module")
def open_service() -> Iterator[tuple[Service, str]]:
    """One service and its url for all tests that change no limit."""
    service = Service()
    with Running(service.app) as running:
        yield service, running.url


@pytest.mark.parametrize("headers", OTHER_SITES)
@pytest.mark.parametrize("body_type", ["application/json", "text/plain"])
def test_pages_of_other_sites_reach_nothing(
    open_service: tuple[Service, str], headers: dict[str, str], body_type: str
) -> None:
    service, url = open_service
    service.seen.clear()
    answer = post(url, content="{}", headers={**headers, "content-type": body_type})
    refused(answer, 403, "came from a page of another site")
    refused(get(url, "wait", **headers), 403, "came from a page of another site")
    assert service.seen == []


@pytest.mark.parametrize(
    ("body_type", "status"),
    [
        ("text/plain", 415), ("application/x-www-form-urlencoded", 415), ("text/json", 415),
        ("multipart/form-data; boundary=application/json", 415), ("application/jsonp", 415),
        ("application/json", 200), ("Application/JSON ; charset=utf-8", 200), (None, 200),
    ],
)  # fmt: skip
def test_a_body_must_be_json(
    open_service: tuple[Service, str], body_type: str | None, status: int
) -> None:
    """Web browsers send only the first kinds to another site without asking."""
    _, url = open_service
    headers = {} if body_type is None else {"content-type": body_type}
    assert post(url, content="{}", headers=headers).status_code == status
    own = {**headers, "origin": url, "sec-fetch-site": "same-origin"}
    assert post(url, content="{}", headers=own).status_code == status


def test_an_exception_is_the_answer_of_its_request_and_one_line_in_the_log(
    open_service: tuple[Service, str], caplog: pytest.LogCaptureFixture
) -> None:
    _, url = open_service
    refused(get(url, "fail"), 500, "the service failed at this request (KeyError)")
    assert post(url, content="{}").text == "2"
    [line] = [record.getMessage() for record in caplog.records]
    assert line.startswith(r"GET /fail: KeyError: 'a\nreason of two lines' (")
    assert line.endswith(")")
    assert "test_guard.py:" in line


def test_bodies_are_limited_with_and_without_their_length(
    open_service: tuple[Service, str],
) -> None:
    _, url = open_service
    assert post(url, content=iter([b"ab", b"c"])).text == "3"
    half = b" " * (MAX_BODY // 2)
    for body in (half + half + b"x", iter([half, half, b"x"])):
        refused(post(url, content=body), 413, "longer than 16,777,216 bytes")
    assert post(url, content=half + half).text == str(MAX_BODY)


Connect = Callable[[Running, bytes], socket.socket]


@pytest.fixture
def connect() -> Iterator[Connect]:
    """Opens connections and sends the first bytes; they are closed after the test."""
    with ExitStack() as stack:

        def connected(running: Running, sent: bytes) -> socket.socket:
            address = ("127.0.0.1", running.port)
            connection = stack.enter_context(socket.create_connection(address, timeout=LIMIT))
            connection.sendall(sent)
            return connection

        yield connected


def received(connection: socket.socket) -> bytes:
    """All that the server sends until it closes the connection."""
    parts = []
    try:
        while part := connection.recv(65536):
            parts.append(part)
    except ConnectionResetError:
        pass
    return b"".join(parts)


def test_clients_that_send_nothing_or_little_are_not_waited_for(connect: Connect) -> None:
    service = Service()
    service.traffic.body_seconds, service.traffic.idle_seconds = 0.2, 1.0
    with Running(service.app) as running:
        head = b"POST /length HTTP/1.1\r\nhost: 127.0.0.1\r\n"
        slow = connect(running, head + b"content-length: 10\r\n\r\nabc")
        answer = received(slow)
        assert answer.startswith(b"HTTP/1.1 408 ")
        assert b"has not come within 0.2 s" in answer
        service.traffic.body_seconds = LIMIT
        whole = head + b"content-length: 1\r\n\r\nx"
        waiting = [connect(running, sent) for sent in (b"", b"P", head, b"\r\n", whole + head)]
        answered = [received(connection).count(b"HTTP/1.1 200 OK") for connection in waiting]
        assert answered == [0, 0, 0, 0, 1]
        assert service.traffic.running == 0
        assert post(running.url, content="{}").text == "2"


def test_endless_headers_end_their_connection(connect: Connect) -> None:
    with Running(Service().app) as running:
        connection = connect(running, b"GET /wait HTTP/1.1\r\nx: ")
        with pytest.raises(OSError, match=r"Broken pipe|reset by peer"):
            connection.sendall(b"x" * 100_000_000)
        assert post(running.url, content="{}").text == "2"


def test_idle_connections_make_room_and_busy_ones_are_answered(connect: Connect) -> None:
    service = Service()
    service.traffic.connections = 8
    with Running(service.app) as running, ThreadPoolExecutor(8) as pool:
        idle = [connect(running, b"") for _ in range(40)]
        assert post(running.url, content="{}").text == "2"
        assert all(received(connection) == b"" for connection in idle[:32])
        busy = [pool.submit(get, running.url, "wait") for _ in range(8)]
        wait_until(lambda: service.traffic.running == 8)
        answer = post(running.url, content="{}")
        refused(answer, 503, "8 requests are answered now; ask again later")
        assert answer.headers["retry-after"] == "5"
        service.gate.set()
        assert [one.result().json() for one in busy] == ["answered"] * 8
        assert post(running.url, content="{}").text == "2"


def test_a_signal_lets_running_requests_end_and_refuses_new_ones() -> None:
    service = Service()
    with Running(service.app) as running, ThreadPoolExecutor(3) as pool:
        asked = [pool.submit(get, running.url, "wait") for _ in range(3)]
        wait_until(lambda: service.traffic.running == 3)
        running.server.handle_exit(signal.SIGTERM, None)
        answer = post(running.url, content="{}")
        refused(answer, 503, "the service ends")
        assert answer.headers["retry-after"] == "5"
        service.traffic.private.add(("127.0.0.1", running.port))  # as of the policy's own process
        assert post(running.url, content="{}").text == "2"
        service.gate.set()
        assert [one.result().json() for one in asked] == ["answered"] * 3
        running.thread.join(LIMIT)
        assert not running.thread.is_alive()


@pytest.mark.parametrize("host", ["ü..ü", "a\0b"])
def test_a_host_without_address_is_an_error_with_its_options(host: str) -> None:
    with pytest.raises(InputError, match=r"cannot listen on .*; choose another --host or --port"):
        bind_socket(host, 0)


def test_a_port_that_another_process_took_before_this_one_listened_is_an_error() -> None:
    with bind_socket("127.0.0.1", 0) as first:
        port = first.getsockname()[1]
        with bind_socket("127.0.0.1", port) as second:
            first.listen()
            with pytest.raises(InputError, match=rf"cannot listen on .*:{port} .*in use"):
                serve(Server(guarded_app((), None)), second, lambda: None)


ENDLESS = """
import asyncio, sys
from multiprocessing import get_context
from time import sleep
from pipeline.knowledge.retrieval.remote.server import bind_socket, guarded_app, serve, Server

app = guarded_app((), None)

@app.get("/")
async def never():
    print("asked", flush=True)
    await asyncio.Event().wait()

if __name__ == "__main__":
    child = get_context("spawn").Process(target=sleep, args=(3600,))
    child.start()
    on = bind_socket("127.0.0.1", 0)
    serve(Server(app), on, lambda: print(on.getsockname()[1], child.pid, flush=True))
"""


def ends_without_an_answer(port: int) -> None:
    with pytest.raises(httpx.HTTPError):
        get(f"http://127.0.0.1:{port}", "")


@pytest.mark.slow
@pytest.mark.parametrize("second", [signal.SIGTERM, signal.SIGINT])
def test_a_second_signal_ends_the_service_and_its_processes_at_once(
    second: signal.Signals, tmp_path: Path
) -> None:
    program = tmp_path / "endless.py"
    program.write_text(ENDLESS)
    with ending(
        subprocess.Popen(
            [sys.executable, program], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
            env={**os.environ, "PYTHONPATH": str(ROOT)},
        )
    ) as process:  # fmt: skip
        assert process.stdout is not None
        assert process.stderr is not None
        port, child = map(int, process.stdout.readline().split())
        asking = threading.Thread(target=ends_without_an_answer, args=(port,))
        asking.start()
        assert process.stdout.readline() == "asked\n"
        process.send_signal(signal.SIGTERM)
        told = "1 requests are still answered; a second signal ends now\n"
        assert process.stderr.readline() == told
        process.send_signal(second)
        assert process.wait(LIMIT) == 128 + second
        asking.join(LIMIT)
    wait_until(lambda: not Path(f"/proc/{child}/exe").exists())
