"""A fake endpoint, which answers chat completion requests from a script, and its chat model.

The script is called with the text of the last message and the number of earlier requests with that text.
It returns the content of the answer, or a `Response` for any other behavior of a server.
"""

import json
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

from pipeline.config import Endpoint
from pipeline.core.content_cache import ContentCache
from pipeline.core.records import Message
from pipeline.llm.chat import Reply
from pipeline.llm.endpoint import EndpointChat


@dataclass(frozen=True)
class Response:
    """A response, sent after ``delay`` seconds; ``drop`` closes the connection instead.

    ``raw`` are the bytes to write in the place of status, headers and body, without end if it is endless.
    """

    status: int = 200
    body: str = ""
    headers: dict[str, str] = field(default_factory=dict)
    delay: float = 0.0
    drop: bool = False
    raw: Iterable[bytes] | None = None


Script = Callable[[str, int], str | Response]


def completion(content: Any, finish: str = "stop", **message: Any) -> str:
    """The response body of an answer with 10 prompt and 3 completion tokens."""
    choice = {
        "index": 0,
        "finish_reason": finish,
        "message": {"role": "assistant", "content": content, **message},
    }
    usage = {"prompt_tokens": 10, "completion_tokens": 3, "total_tokens": 13}
    return json.dumps({"id": "1", "object": "chat.completion", "choices": [choice], "usage": usage})


def refusal(status: int, message: str, code: str | None = None, **headers: str) -> Response:
    """An error response in the API's format; keywords such as ``retry_after`` become headers."""
    dashed = {name.replace("_", "-"): value for name, value in headers.items()}
    return Response(status, json.dumps({"error": {"message": message, "code": code}}), dashed)


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 128  # with the default of 5, connections of many workers are reset


class FakeEndpoint:
    """Serves ``script`` until closed; ``request_counts`` counts requests by text."""

    def __init__(self, script: Script) -> None:
        self.script = script
        self.request_counts: Counter[str] = Counter()
        self.requests: list[dict[str, Any]] = []
        self.keys: set[str | None] = set()
        self.headers: list[dict[str, str]] = []
        self._lock = threading.Lock()
        self._server = _Server(("127.0.0.1", 0), self._handler())
        threading.Thread(target=self._server.serve_forever, args=(0.01,), daemon=True).start()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._server.server_address[1]}/v1"

    def __enter__(self) -> "FakeEndpoint":
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._server.server_close()

    def respond(self, body: dict[str, Any], key: str | None) -> Response:
        text = body["messages"][-1]["content"]
        with self._lock:
            before = self.request_counts[text]
            self.request_counts[text] += 1
            self.requests.append(body)
            self.keys.add(key)
        answer = self.script(text, before)
        response = Response(body=completion(answer)) if isinstance(answer, str) else answer
        time.sleep(response.delay)
        return response

    def _handler(self) -> type[BaseHTTPRequestHandler]:
        endpoint = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_POST(self) -> None:
                body = json.loads(self.rfile.read(int(self.headers["content-length"])))
                endpoint.headers.append({name.lower(): each for name, each in self.headers.items()})
                response = endpoint.respond(body, self.headers.get("authorization"))
                if response.drop:
                    self.close_connection = True
                    return
                content = response.body.encode()
                try:
                    if response.raw is not None:
                        self.close_connection = True
                        for part in response.raw:
                            self.wfile.write(part)
                        return
                    self.send_response(response.status)
                    for name, value in {
                        "content-type": "application/json",
                        "content-length": str(len(content)),
                        **response.headers,
                    }.items():
                        self.send_header(name, value)
                    self.end_headers()
                    self.wfile.write(content)
                except OSError:
                    self.close_connection = True  # the client closed the connection

            def log_message(self, format: str, *args: Any) -> None:
                pass

        return Handler


def open_chat(
    folder: Path, server: FakeEndpoint, *, shards: int = 1, **settings: Any
) -> EndpointChat:
    """The chat model of a server, as the block ``graph`` has it; its cache is in ``folder``."""
    endpoint = Endpoint(**{"base_url": server.url, "model": "fake", "retries": 1, **settings})
    cache = ContentCache(folder / "chat.sqlite")
    return EndpointChat(endpoint, cache, block="graph", shards=shards)


def asked(folder: Path, server: FakeEndpoint, *texts: str, **settings: Any) -> dict[str, Reply]:
    """The replies to prompts of one message each, by its text."""
    with open_chat(folder, server, **settings) as chat:
        return chat.ask([(text, [Message("user", text)]) for text in texts], max_tokens=16)
