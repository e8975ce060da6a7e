"""Ways in which an endpoint misbehaves, each with what the client must make of it.

`MODES` is the list, and `check` runs one of them against a real server. A mode is one of four kinds:

- ``retried``: the first try fails, and the second gets its answer. When all tries fail, the error
  says ``says``.
- ``error``: the first try ends with an EngineError that says ``says``.
- ``answer``: the reply is accepted; its text is ``says``.
- ``fault``: the reply concerns the prompt alone, whose answer has the fault ``says``.
"""

import gzip
import json
import logging
import os
import re
import socket
import time
import zlib
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal
from unittest.mock import patch

from pipeline.config import Endpoint
from pipeline.core.content_cache import ContentCache
from pipeline.core.errors import EngineError
from pipeline.core.records import Message
from pipeline.core.text import visible
from pipeline.llm.chat import Answer, Usage
from pipeline.llm.endpoint_chat import EndpointChat
from tests.llm.raw_endpoint import (
    Behavior,
    RawEndpoint,
    certificate,
    forever,
    reply,
    reset,
    sends,
    silence,
)

KEY = "sk-secret/0123456789abcdef"
LONGEST = 300  # seconds that one mode may take
MODEL = "judge-4"


@dataclass(frozen=True)
class Mode:
    """One way to misbehave; ``url`` and ``environment`` may contain {port} and {certificate}."""

    name: str
    kind: Literal["retried", "error", "answer", "fault"]
    behave: Behavior
    says: str
    timeout: float = 10.0
    tls: str | None = None  # the host in the server's certificate
    url: str | None = None
    environment: dict[str, str] = field(default_factory=dict)
    usage: dict[str, Any] = field(default_factory=dict)  # expected numbers for ``answer``
    warns: str = ""


def completion(content: Any = "fine", usage: Any = "default", **changes: Any) -> str:
    """A reply in the API's format; ``message`` and ``finish`` among ``changes`` go into the choice."""
    message = {"role": "assistant", "content": content, **changes.pop("message", {})}
    choice = {"index": 0, "finish_reason": changes.pop("finish", "stop"), "message": message}
    counts = {"prompt_tokens": 10, "completion_tokens": 3} if usage == "default" else usage
    body = {"model": MODEL, "choices": [choice], "usage": counts, **changes}
    return json.dumps({name: value for name, value in body.items() if value != "absent"})


def error(message: Any, status: int, *headers: str, code: str | None = None) -> Behavior:
    return reply(json.dumps({"error": {"message": message, "code": code}}), status, *headers)


def _refused_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        return int(listener.getsockname()[1])


_GOOD = completion().encode()
_CHUNKED = b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n"
_ESCAPES = "\x1b]0;owned\x07\x1b[2J\u202egpj.exe\u2066\u200f\x9b31m\x00"
_PROXIES = ("http_proxy", "https_proxy", "all_proxy")
_NO_PROXY = dict.fromkeys([*_PROXIES, *map(str.upper, _PROXIES)], "")
_UNCOUNTED = {"prompt_tokens": 0, "completion_tokens": 0, "uncounted": 1}


def _proxy(address: str) -> dict[str, str]:
    return {"HTTPS_PROXY": address, "https_proxy": address, "NO_PROXY": "", "no_proxy": ""}


def _bomb() -> bytes:
    compressor = zlib.compressobj(9, wbits=31)
    part = b"a" * 2**20
    return b"".join([*(compressor.compress(part) for _ in range(400)), compressor.flush()])


MALFORMED = {
    "web page": ("<!doctype html><title>Log in</title>", "is a web page, not JSON"),
    "empty reply": ("", "the reply is empty"),
    "blank reply": (" \r\n ", "the reply is empty"),
    "truncated JSON": (_GOOD[:60], "not valid JSON"),
    "garbage after the JSON": (_GOOD + b"}", "not valid JSON"),
    "event stream": ('data: {"choices": []}\n\n', "not valid JSON"),
    "NaN": (completion(logprobs=float("nan")), "NaN is not a JSON number"),
    "Infinity": (completion(usage={"prompt_tokens": float("inf")}), "Infinity is not a JSON"),
    "deep JSON": ("[" * 100_000, "nested more than|not valid JSON"),
    "integer of 5,000 digits": ('{"choices": ' + "9" * 5000 + "}", "does not fit into 64 bits"),
    "number too large": ('{"choices": 1e999}', "too large"),
    "choices empty": (completion(choices=[]), "not a chat completion"),
    "choices null": (completion(choices=None), "not a chat completion"),
    "choices missing": (completion(choices="absent"), "not a chat completion"),
    "choices a text": (completion(choices="fine"), "not a chat completion"),
    "choice null": (completion(choices=[None]), "not a chat completion"),
    "message null": (completion(choices=[{"message": None}]), "not a chat completion"),
    "message a list": (completion(choices=[{"message": ["fine"]}]), "not a chat completion"),
    "content a list": (completion([{"type": "text", "text": "fine"}]), "is not text"),
    "content a number": (completion(7), "is not text"),
    "list": ("[1]", "not a chat completion"),
    "text": ('"fine"', "not a chat completion"),
    "null": ("null", "not a chat completion"),
    "UTF-16": (completion().encode("utf-16"), "not UTF-8"),
    "Latin-1": (completion().replace("fine", "\xe9").encode("latin-1"), "not UTF-8"),
    "escapes in garbage": (_ESCAPES, "not valid JSON"),
    "key in garbage": (f"your key is {KEY}", "your key is [[]key[]]"),
}

ANSWERS = {
    "charset utf-16 in the header": reply(_GOOD, kind="application/json; charset=utf-16"),
    "unknown charset": reply(_GOOD, kind="application/json; charset=klingon"),
    "HTML as content type": reply(_GOOD, kind="text/html"),
    "byte order mark": reply(b"\xef\xbb\xbf" + _GOOD),
    "gzip": reply(gzip.compress(_GOOD), 200, "content-encoding: gzip"),
    "deflate": reply(zlib.compress(_GOOD), 200, "content-encoding: deflate"),
    "status 201": reply(_GOOD, 201),
    "chunked": sends(_CHUNKED + b"%x\r\n%s\r\n0\r\n\r\n" % (len(_GOOD), _GOOD)),
    "body until the connection closes": sends(b"HTTP/1.0 200 OK\r\n\r\n" + _GOOD),
    "slow, but in time": sends(
        b"HTTP/1.1 200 OK\r\nconnection: close\r\n\r\n", _GOOD[:50], _GOOD[50:], pause=0.1
    ),
    "longer name of the model": reply(completion(model=f"{MODEL}-2024-08-06")),
    "no name of the model": reply(completion(model="absent")),
    "name of the model a number": reply(completion(model=4)),
}

BROKEN = {
    "no reply": (sends(), "Server disconnected without sending a response"),
    "closed within the headers": (sends(b"HTTP/1.1 200 OK\r\ncontent-"), "broke"),
    "closed within the body": (
        reply(_GOOD[:40], 200, "content-length: 400"), "peer closed connection without",
    ),
    "closed within a chunk": (sends(_CHUNKED + b"ff\r\n{"), "peer closed connection without"),
    "reset": (reset, "broke"),
    "not HTTP": (sends(b"SSH-2.0-OpenSSH_9.6\r\n"), "the connection to .* broke"),
    "not HTTP, with the key": (sends(b"x" * 150 + KEY.encode() + b"\r\n\r\n"), "broke"),
    "101": (sends(b"HTTP/1.1 101 x\r\nupgrade: x\r\nconnection: upgrade\r\n\r\n"), "broke"),
    "invalid chunk": (sends(_CHUNKED + b"zz\r\n{}\r\n"), "broke"),
    "two lengths": (reply(_GOOD, 200, "content-length: 3", "content-length: 9"), "broke"),
    "header of a megabyte": (reply(_GOOD, 200, "x-long: " + "a" * 2**20), "broke"),
    "endless headers": (forever(b"HTTP/1.1 200 OK\r\n", b"a: b\r\n" * 999), "broke"),
    "1.5 GB announced": (
        reply(b"{", 200, "content-length: 1500000000"), "longer than 16,777,216 bytes",
    ),
    "length of 30 digits": (reply(b"{", 200, "content-length: " + "9" * 30), "broke|longer than"),
    "endless body": (
        forever(b"HTTP/1.1 200 OK\r\n\r\n{", b" " * 65536), "longer than 16,777,216 bytes",
    ),
    "endless body of an error": (
        forever(b"HTTP/1.1 500 x\r\n\r\n", b"a" * 65536), "longer than 16,777,216 bytes",
    ),
    "gzip of 400 MB": (
        reply(_bomb(), 200, "content-encoding: gzip"), "longer than 16,777,216 bytes",
    ),
    "gzip cut off": (
        reply(gzip.compress(_GOOD)[:-9], 200, "content-encoding: gzip"), "ended early",
    ),
    "gzip that is none": (reply(_GOOD, 200, "content-encoding: gzip"), "cannot be decompressed"),
    "gzip twice": (
        reply(_GOOD, 200, "content-encoding: gzip, gzip"), "compressed as 'gzip, gzip'",
    ),
    "unknown compression": (reply(_GOOD, 200, "content-encoding: br"), "compressed as 'br'"),
}  # fmt: skip

SLOW = {
    "silence": (silence, r"last: no reply within 0.5 s"),
    "slow headers": (forever(b"HTTP/1.1 200 OK\r\n", b"a", 0.02), r"last: no reply within 0.5 s"),
    "slow body": (
        forever(b"HTTP/1.1 200 OK\r\n\r\n", b" ", 0.02), "last: no complete reply within 0.5 s",
    ),
    "endless interim replies": (
        forever(b"", b"HTTP/1.1 100 Continue\r\n\r\n", 0.001), "no reply within 0.5 s",
    ),
}  # fmt: skip

TEMPORARY = {
    "500": (error("oops", 500), "last: HTTP 500: oops"),
    "500 with escapes": (error(_ESCAPES, 500), r"HTTP 500: ␛]0;owned␇␛\[2J\\u202egpj.exe\\u2066"),
    "502 with a web page": (reply("<html>Bad gateway</html>", 502), "HTTP 502: <html>Bad gateway"),
    "503 with 5 MB": (reply("busy " * 1_000_000, 503), r"HTTP 503: busy .{200,300} …"),
    "503 without a body": (reply("", 503), "HTTP 503: ;"),
    "503 with deep JSON": (reply("[" * 9999, 503), r"HTTP 503: \[\[\["),
    "503 with a list": (reply("[7]", 503), r"HTTP 503: \[7\]"),
    "503 in UTF-16": (reply("down".encode("utf-16"), 503, kind="text/x; charset=utf-16"), "503"),
    "599": (reply("?", 599), r"HTTP 599: \?"),
    "408": (error("slow", 408), "HTTP 408: slow"),
    "Retry-After nan": (error("busy", 503, "retry-after: nan"), "HTTP 503: busy"),
    "Retry-After inf": (error("busy", 503, "retry-after: inf"), "HTTP 503: busy"),
    "Retry-After negative": (error("busy", 503, "retry-after: -9"), "HTTP 503: busy"),
}

LASTING = {
    "401": (error("no", 401), "set FAKE_KEY to a key that is valid"),
    "401 with the key": (error(f"bad key {KEY}", 401), r"HTTP 401: bad key \[key\]"),
    "401 with half the key": (error("a" * 290 + KEY, 401), r"HTTP 401: a{290}\[key\]"),
    "403": (error("no", 403), "set FAKE_KEY to a key that is valid"),
    "404": (error("no such model", 404), r"correct judges\.over\.endpoint\.base_url"),
    "405": (reply("", 405), r"correct judges\.over\.endpoint\.base_url"),
    "402": (error("pay", 402), "add credit"),
    "400": (error("no field seed", 400), r"no field seed.*correct judges\.over\.endpoint \(model"),
    "400 with escapes": (error(_ESCAPES, 400), r"HTTP 400: ␛]0;owned␇␛\[2J\\u202egpj"),
    "400 with lines": (reply("a\nb\r\nc", 400), "HTTP 400: a b c"),
    "quota": (error("x", 429, code="insufficient_quota"), "add credit"),
    "429 in all tries": (error("busy", 429), "requests_per_minute"),
    "Retry-After of an hour": (error("x", 429, "retry-after: 3600"), "requests a pause of 3600 s"),
    **{
        f"{status} to another host": (
            reply("", status, "location: http://127.0.0.1:{elsewhere}/v1/chat/completions"),
            r"redirects to http://127.0.0.1:\d+/v1/chat/completions .*redirects are not followed",
        )
        for status in (301, 302, 303, 307, 308)
    },
    "redirect to itself": (reply("", 307, "location: /v1/chat/completions"), "redirects to /v1"),
    "redirect to nowhere": (reply("", 302), "redirects to no address"),
    "redirect with escapes and the key": (
        reply("", 302, f"location: http://x/{KEY}\u202e"), r"redirects to http://x/\[key\]",
    ),
}  # fmt: skip

CONNECTIONS = (
    Mode("certificate of nobody", "error", reply(_GOOD), "TLS certificate of .* was refused .self"
         ".*SSL_CERT_FILE", tls="127.0.0.1"),
    Mode("certificate of another host", "error", reply(_GOOD), "TLS certificate of .* was refused"
         ".*[Mm]ismatch", tls="example.org", environment={"SSL_CERT_FILE": "{certificate}"}),
    Mode("certificate that is trusted", "answer", reply(_GOOD), "fine", tls="127.0.0.1",
         environment={"SSL_CERT_FILE": "{certificate}"}),
    Mode("no file of certificates", "error", reply(_GOOD), "HTTP client cannot be set up.*correct",
         environment={"SSL_CERT_FILE": "/no/such/file"}, tls="127.0.0.1"),
    Mode("https to a server without it", "error", sends(b"HTTP/1.1 400 x\r\n\r\n"),
         "TLS handshake with .* failed .*http instead of https", url="https://127.0.0.1:{port}/v1"),
    Mode("http to a server with TLS", "retried", reply(_GOOD), "broke", tls="127.0.0.1",
         url="http://127.0.0.1:{port}/v1"),
    Mode("no server", "retried", silence, "was refused", url="http://127.0.0.1:{refused}/v1"),
    Mode("unknown host", "retried", silence, "host name of no-such-host.invalid was not found|no connection",
         url="http://no-such-host.invalid/v1"),
    Mode("full queue of connections", "retried", silence, "no connection to .* within 0.25 s|refused",
         timeout=0.5, url="http://127.0.0.1:{full}/v1"),
    Mode("proxy refuses", "retried", reply("no", 403), "through the proxy of HTTPS_PROXY refused",
         url="https://example.org/v1", environment=_proxy("http://127.0.0.1:{port}")),
    Mode("proxy is down", "retried", silence, "example.org through the proxy of HTTPS_PROXY was",
         url="https://example.org/v1",
         environment=_proxy("http://127.0.0.1:{refused}")),
    Mode("proxy with an unknown scheme", "error", silence, "correct HTTPS_PROXY",
         url="https://example.org/v1", environment=_proxy("gopher://x")),
)  # fmt: skip

SPECIAL = (
    Mode("too long", "fault", error("maximum context length is 8", 400), "prompt too long"),
    Mode("413", "fault", reply("", 413), "prompt too long"),
    Mode("content filter", "fault", error("x", 400, code="content_filter"), "content filter"),
    Mode("refusal", "fault", reply(completion(None, message={"refusal": "no"})), "content filter"),
    Mode("filtered", "fault", reply(completion("half", finish="content_filter")), "content filter"),
    Mode("length", "answer", reply(completion("cut", finish="length")), "cut"),
    Mode("content null", "answer", reply(completion(None)), ""),
    Mode("half a character", "answer", reply(completion("a\ud83d")), "a\ufffd"),
    Mode("key in the answer", "answer", reply(completion(f"it is {KEY}")), "it is [key]"),
    Mode("key in escapes", "answer", reply(completion(KEY).replace("/", "\\/")), "[key]"),
    Mode("key in a field", "answer", reply(completion(id=KEY).replace("s", "\\u0073")), "fine"),
    Mode("another model", "answer", reply(completion(model="cheap-1")), "fine",
         usage={"other_models": {"cheap-1": 1}}, warns="model is judge-4, but cheap-1 answered"),
    Mode("name of the model with escapes", "answer", reply(completion(model=_ESCAPES * 99)),
         "fine", warns="but ␛]0;owned␇"),
    *(
        Mode(f"usage {usage!r}", "answer", reply(completion(usage=usage)), "fine", usage=_UNCOUNTED)
        for usage in (
            "absent", None, [], "7", {}, {"prompt_tokens": 10},
            {"prompt_tokens": -10, "completion_tokens": 3},
            {"prompt_tokens": 10, "completion_tokens": 2**62},
            {"prompt_tokens": 10.5, "completion_tokens": 3},
            {"prompt_tokens": True, "completion_tokens": 3},
            {"prompt_tokens": "10", "completion_tokens": "3"},
        )
    ),
)  # fmt: skip

MODES = (
    *(Mode(name, "retried", reply(body), says) for name, (body, says) in MALFORMED.items()),
    *(Mode(name, "retried", behave, says) for name, (behave, says) in BROKEN.items()),
    *(Mode(name, "retried", behave, says, timeout=0.5) for name, (behave, says) in SLOW.items()),
    *(Mode(name, "retried", behave, says) for name, (behave, says) in TEMPORARY.items()),
    *(Mode(name, "error", behave, says) for name, (behave, says) in LASTING.items()),
    *(Mode(name, "answer", behave, "fine") for name, behave in ANSWERS.items()),
    *SPECIAL,
    *CONNECTIONS,
)
_NORMAL = {"answers": 1, "prompt_tokens": 10, "completion_tokens": 3}


def check(mode: Mode, folder: Path) -> None:
    """Run a mode with its cache in ``folder``. Raises AssertionError when the client fails it."""
    started = time.monotonic()
    if mode.kind == "retried":
        if mode.url is None and mode.tls is None:
            _check_retry(mode, folder / "once")
        _check_error(mode, folder / "always", rf"no reply to 1 prompts nor to a.*{mode.says}")
    elif mode.kind == "error":
        _check_error(mode, folder, mode.says)
    else:
        _check_answer(mode, folder)
    took = time.monotonic() - started
    assert took < LONGEST, f"took {took:.0f} s"


def _check_retry(mode: Mode, folder: Path) -> None:
    """A later try gets the answer; the second one, unless the machine is busy."""
    with _served(mode, lambda before: before == 0) as server:
        answer, _ = _ask(mode, server, folder, retries=9)
    assert (answer.text, answer.fault) == ("fine", None)
    assert server.request_counts["a"] >= 2


def _check_error(mode: Mode, folder: Path, says: str) -> None:
    """The error is one visible sentence; nothing is stored, and no other host got a request."""
    elsewhere = RawEndpoint(lambda text, before: reply(completion("of another host")))
    with _served(mode, lambda before: True, elsewhere) as server:
        try:
            answer, _ = _ask(mode, server, folder, retries=0)
        except EngineError as error:
            message = str(error)
        else:
            raise AssertionError(f"no error, but the answer {answer.text!r}")
    elsewhere.close()
    assert re.search(says, message), message
    assert message.startswith("judges.over.endpoint: http"), message
    assert visible(message) == message, repr(message)
    assert "\n" not in message, repr(message)
    assert KEY[:8] not in message, message
    assert len(message) < 1000, message
    assert not elsewhere.requests


def _check_answer(mode: Mode, folder: Path) -> None:
    warnings = _Warnings()
    logging.getLogger("pipeline.llm.endpoint_chat").addHandler(warnings)
    with _served(mode, lambda before: True) as server:
        answer, usage = _ask(mode, server, folder, retries=0)
    logging.getLogger("pipeline.llm.endpoint_chat").removeHandler(warnings)
    if mode.kind == "fault":
        assert (answer.text, answer.fault) == ("", mode.says)
    else:
        assert (answer.text, answer.fault) == (mode.says, None)
        unusual = {} if mode.warns else {"uncounted": 0, "other_models": {}}
        counts = {"answers": 2, "prompt_tokens": 20, "completion_tokens": 6, **unusual}
        if mode.usage == _UNCOUNTED:
            counts |= {"prompt_tokens": 10, "completion_tokens": 3, "uncounted": 1}
        else:
            counts |= mode.usage
        assert {name: getattr(usage, name) for name in counts} == counts
    assert [bool(warnings.lines), mode.warns in "".join(warnings.lines)] == [bool(mode.warns), True]
    assert all(visible(line) == line for line in [*warnings.lines, usage.line()])


class _Warnings(logging.Handler):
    def __init__(self) -> None:
        super().__init__()
        self.lines: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.lines.append(record.getMessage())


@contextmanager
def _served(
    mode: Mode, misbehaves: Callable[[int], bool], elsewhere: RawEndpoint | None = None
) -> Iterator[RawEndpoint]:
    """A server that misbehaves for prompt "a", and for all others where none is answered."""

    def script(text: str, before: int) -> Behavior:
        others = mode.kind in ("answer", "fault") and text != "a"
        if others or not misbehaves(before):
            return reply(completion())
        return _to(elsewhere.port, mode.behave) if elsewhere is not None else mode.behave

    with ExitStack() as stack:
        server = RawEndpoint(script, mode.tls)
        stack.callback(server.close)
        yield server


def _to(port: int, behave: Behavior) -> Behavior:
    """The behavior with the port of another host in what it sends."""

    def send(connection: socket.socket) -> None:
        class Replaced:
            def sendall(self, data: bytes) -> None:
                connection.sendall(data.replace(b"{elsewhere}", str(port).encode()))

            def __getattr__(self, name: str) -> Any:
                return getattr(connection, name)

        behave(Replaced())  # type: ignore[arg-type]

    return send


def _ask(mode: Mode, server: RawEndpoint, folder: Path, *, retries: int) -> tuple[Answer, Usage]:
    """The answer to prompt "a", with "b" asked as well where it shows that the endpoint works."""
    with ExitStack() as stack:
        values = {"port": server.port, "refused": _refused_port()}
        if mode.tls is not None:
            values["certificate"] = str(certificate(mode.tls))  # type: ignore[assignment]
        if mode.url is not None and "{full}" in mode.url:
            values["full"] = stack.enter_context(_full_queue())
        environment = {
            "FAKE_KEY": KEY,
            **_NO_PROXY,
            **{name: value.format(**values) for name, value in mode.environment.items()},
        }
        stack.enter_context(patch.dict(os.environ, environment))
        endpoint = Endpoint(
            base_url=server.url if mode.url is None else mode.url.format(**values),
            model=MODEL,
            api_key_env="FAKE_KEY",
            timeout=mode.timeout,
            retries=retries,
            concurrency=1,
        )
        cache = ContentCache(folder / "chat.sqlite")
        chat = EndpointChat(endpoint, cache, block="judges.over", first_wait=0.01)
        texts = ["a", "b"] if mode.kind in ("answer", "fault") else ["a"]
        try:
            answers = chat.ask([(text, [Message("user", text)]) for text in texts], max_tokens=16)
        finally:
            chat.close()
            stored = b"".join(p.read_bytes() for p in folder.iterdir())
            assert KEY.encode() not in stored
            assert json.dumps(KEY).replace("/", "\\\\/").encode() not in stored
            assert b"of another host" not in stored
        return answers["a"], chat.usage


@contextmanager
def _full_queue() -> Iterator[int]:
    """The port of a server that accepts no connection and whose queue is full."""
    with ExitStack() as stack:
        listener = stack.enter_context(socket.socket())
        listener.bind(("127.0.0.1", 0))
        listener.listen(0)
        for _ in range(4):
            waiting = stack.enter_context(socket.socket())
            waiting.setblocking(False)
            waiting.connect_ex(listener.getsockname())
        yield listener.getsockname()[1]
