"""An endpoint on the level of sockets, for replies that no HTTP library would send.

Every connection gets one reply. A `Behavior` receives the connection after the request was read, and
may send anything, wait, or break the connection. The tests of the retrieval client use it as well.
"""

import json
import shutil
import socket
import ssl
import struct
import subprocess
import threading
import time
from collections import Counter
from collections.abc import Callable
from functools import cache
from pathlib import Path
from tempfile import mkdtemp
from typing import Any

Behavior = Callable[[socket.socket], None]
Script = Callable[
    [str, int], Behavior
]  # of the last message's text and the earlier requests with it

_HANDSHAKE = b"\x16\x03"  # of TLS


def reply(
    body: bytes | str, status: int = 200, *headers: str, kind: str = "application/json"
) -> Behavior:
    """A complete reply with ``headers`` such as "location: /v2"."""
    content = body.encode() if isinstance(body, str) else body
    lines = [f"HTTP/1.1 {status} x", f"content-type: {kind}", "connection: close", *headers]
    if not any(line.startswith(("content-length", "transfer-encoding")) for line in lines):
        lines.append(f"content-length: {len(content)}")
    return sends("\r\n".join(lines).encode("utf-8") + b"\r\n\r\n" + content)


def sends(*parts: bytes, pause: float = 0.0) -> Behavior:
    """Sends raw bytes with a pause between the parts."""

    def behave(connection: socket.socket) -> None:
        for part in parts:
            connection.sendall(part)
            time.sleep(pause)

    return behave


def forever(start: bytes, part: bytes, pause: float = 0.0) -> Behavior:
    """Sends ``start``, then ``part`` until the client closes the connection."""

    def behave(connection: socket.socket) -> None:
        connection.sendall(start)
        while True:
            connection.sendall(part)
            time.sleep(pause)

    return behave


def silence(connection: socket.socket) -> None:
    """Waits until the client closes the connection."""
    while connection.recv(1024):
        pass


def reset(connection: socket.socket) -> None:
    """Breaks the connection with a TCP reset."""
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))


class RawEndpoint:
    """Serves ``script`` on a free port until closed; ``tls`` names the host of its certificate."""

    def __init__(self, script: Script, tls: str | None = None) -> None:
        self._script = script
        self._tls = None
        if tls is not None:
            self._tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
            self._tls.load_cert_chain(certificate(tls))
        self.requests: list[Any] = []
        self.request_counts: Counter[str] = Counter()
        self._lock = threading.Lock()
        self._listener = socket.create_server(("127.0.0.1", 0), backlog=128)
        self.port = self._listener.getsockname()[1]
        threading.Thread(target=self._accept, daemon=True).start()

    @property
    def url(self) -> str:
        return f"{'https' if self._tls else 'http'}://127.0.0.1:{self.port}/v1"

    def close(self) -> None:
        # A thread that waits in accept() keeps the port open, so it is woken.
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()

    def _accept(self) -> None:
        while True:
            try:
                connection, _ = self._listener.accept()
            except OSError:
                return
            threading.Thread(target=self._serve, args=(connection,), daemon=True).start()

    def _serve(self, connection: socket.socket) -> None:
        try:
            if self._tls is not None:
                connection = self._tls.wrap_socket(connection, server_side=True)
            with connection:
                text, before = self._request(connection)
                self._script(text, before)(connection)
        except OSError:
            pass  # the client closed the connection

    def _request(self, connection: socket.socket) -> tuple[str, int]:
        data = b""
        while b"\r\n\r\n" not in data and not data.startswith(_HANDSHAKE):
            part = connection.recv(65536)
            if not part:
                raise OSError("no request")
            data += part
        head, _, body = data.partition(b"\r\n\r\n")
        lines = [] if data.startswith(_HANDSHAKE) else head.split(b"\r\n")[1:]
        fields = dict(line.lower().split(b": ", 1) for line in lines)
        while len(body) < int(fields.get(b"content-length", 0)):
            body += connection.recv(65536)
        request = json.loads(body) if body and lines else None
        text = request["messages"][-1]["content"] if isinstance(request, dict) else str(request)
        with self._lock:
            before = self.request_counts[text]
            self.request_counts[text] += 1
            self.requests.append(request)
        return text, before


@cache
def certificate(host: str) -> Path:
    """A file with a key and a self-signed certificate for an IP address or a host name."""
    openssl = shutil.which("openssl")
    assert openssl, "the tests of certificates need openssl"
    file = Path(mkdtemp()) / "certificate.pem"
    kind = "IP" if host[0].isdigit() else "DNS"
    subprocess.run(
        [
            openssl, "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1",
            "-nodes", "-days", "30", "-subj", "/CN=steep test", "-addext",
            f"subjectAltName={kind}:{host}", "-keyout", str(file), "-out", f"{file}.crt",
        ],
        check=True, capture_output=True,
    )  # fmt: skip
    file.write_bytes(file.read_bytes() + Path(f"{file}.crt").read_bytes())
    return file
