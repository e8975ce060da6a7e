"""A local HTTP server of files in memory that supports ranges and can break off or answer with errors."""

from __future__ import annotations

import hashlib
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer


class FileServer:
    """``files`` maps paths to contents. ``break_after[path]`` bytes end one connection early."""

    def __init__(self) -> None:
        self.files: dict[str, bytes] = {}
        self.break_after: dict[str, int] = {}
        self.content_type = "application/octet-stream"
        self.ranges: list[tuple[str, str | None]] = []
        self.url = ""


def _handler(server: FileServer) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        def log_message(self, *_: object) -> None:
            pass

        def do_GET(self) -> None:
            name = self.path.lstrip("/")
            asked = self.headers.get("Range")
            server.ranges.append((name, asked))
            body = server.files[name]
            tag = f'"{hashlib.sha256(body).hexdigest()[:8]}"'
            start = 0
            if asked and self.headers.get("If-Range") == tag:
                start = int(asked.removeprefix("bytes=").removesuffix("-"))
            self.send_response(206 if start else 200)
            self.send_header("ETag", tag)
            self.send_header("Content-Type", server.content_type)
            self.send_header("Content-Length", str(len(body) - start))
            self.end_headers()
            end = server.break_after.pop(name, len(body))
            self.wfile.write(body[start:end])

    return Handler


@contextmanager
def serving() -> Iterator[FileServer]:
    """A running server, whose ``url`` ends with a slash."""
    server = FileServer()
    httpd = ThreadingHTTPServer(("127.0.0.1", 0), _handler(server))
    server.url = f"http://127.0.0.1:{httpd.server_port}/"
    thread = threading.Thread(target=httpd.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    try:
        yield server
    finally:
        httpd.shutdown()
        thread.join()
        httpd.server_close()
