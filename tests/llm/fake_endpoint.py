"""A fake endpoint: an HTTP server that answers chat completion requests from a script.

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
from typing import Any


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
