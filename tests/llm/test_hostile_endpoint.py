"""Endpoints that answer with anything: each call ends in a reply, a fault, or one sentence, in time."""

import gzip
import itertools
import json
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pipeline.core.errors import EngineError
from pipeline.core.text import visible
from pipeline.judges.cases import EquivalenceCase
from pipeline.judges.llm_judge import LlmJudge
from pipeline.llm.endpoint import NoReplyError, read_completion
from tests.llm.fake_endpoint import (
    FakeEndpoint,
    Response,
    asked,
    completion,
    open_chat,
    refusal,
)

Serve = Callable[..., FakeEndpoint]
KEY = "sk-test/0123456789abcdef"
ESCAPES = "\x1b]0;owned\x07\x1b[2J\u202egpj.exe"
PROBE = "Say yes."
YES = completion("<answer>True</answer>")


def raw(body: bytes, *headers: str, status: str = "200 OK", length: int | None = None) -> Response:
    """A response of any status line and headers; ``length`` is the length that it claims."""
    counted = f"Content-Length: {len(body) if length is None else length}"
    head = "\r\n".join((f"HTTP/1.1 {status}", *headers, counted))
    return Response(raw=[f"{head}\r\n\r\n".encode("latin-1") + body])


def said(**body: Any) -> Response:
    """A reply of status 200 with this body."""
    return Response(body=json.dumps(body))


def chunked(parts: Iterator[bytes], *headers: str) -> Iterator[bytes]:
    """A response in chunks."""
    head = "\r\n".join(("HTTP/1.1 200 OK", "Transfer-Encoding: chunked", *headers))
    yield f"{head}\r\n\r\n".encode()
    for part in parts:
        yield f"{len(part):x}\r\n".encode() + part + b"\r\n"


def choice(**of: Any) -> list[dict[str, Any]]:
    return [{"message": {"content": "<answer>Tr"}, "finish_reason": "stop", **of}]


LIMITED = {"message": "Provider returned error", "code": 429}
PASSING = {  # replies that are none, and that another try may mend
    "a rate limit without choices": said(choices=None, error=LIMITED),
    "a rate limit as words": said(error="Too many requests, slow down"),
    "a rate limit as a type": said(error={"type": "overloaded_error", "message": "Overloaded"}),
    "a rate limit as a status": said(error={"status": "RESOURCE_EXHAUSTED", "message": "x"}),
    "a rate limit in a detail": said(detail="Rate limit exceeded"),
    "a rate limit at the top": said(object="error", message="busy", code=429),
    "a rate limit in a list": Response(body=json.dumps([{"error": LIMITED}])),
    "a rate limit beside a text": said(choices=choice(), error=LIMITED),
    "an error in the choice": said(choices=choice(error={"code": 502, "message": "x"})),
    "a text that ended in an error": said(choices=choice(finish_reason="error")),
    "an unknown error": said(error={"message": "something broke", "code": 1302}),
    "no choices": said(choices=None),
    "no message": said(choices=[{"finish_reason": "stop"}]),
    "parts instead of a text": said(choices=choice(message={"content": [{"text": YES}]})),
    "a page": Response(body="<html>Bad gateway</html>", headers={"content-type": "text/html"}),
    "nothing": Response(body=""),
    "half a JSON": Response(body=YES[:-20]),
    "no UTF-8": raw(YES.encode().replace(b"True", b"\xff\xfe")),
    "events": Response(body=f"data: {YES}", headers={"content-type": "text/event-stream"}),
    "no content": raw(b"", status="204 No Content"),
    "a body shorter than its length": raw(YES.encode(), length=10**6),
    "damaged gzip": raw(gzip.compress(YES.encode())[:-30], "Content-Encoding: gzip"),
    "a connection that is closed": Response(drop=True),
    "a date in the past": raw(b"", "Retry-After: Thu, 01 Jan 1970 00:00:00 GMT", status="429 x"),
    "a wait below zero": raw(b"", "Retry-After: -5", status="503 x"),
    "a wait of a moment": refusal(429, "slow down", retry_after="0.01"),
}  # fmt: skip


def test_what_is_no_answer_is_asked_for_again(tmp_path: Path, serve: Serve) -> None:
    server = serve(lambda text, before: "at last" if before else PASSING[text])
    replies = asked(tmp_path, server, *PASSING)
    assert {name: reply.text for name, reply in replies.items() if reply.text != "at last"} == {}
    assert server.request_counts == dict.fromkeys(PASSING, 2)  # no probe was needed


FAULTS = {
    "a filter": (refusal(400, "x", "content_filter"), "content filter"),
    "a filter in a good status": (said(error={"code": "content_filter", "message": "x"}), "content filter"),
    "a filtered text": (Response(body=completion("half", "content_filter")), "content filter"),
    "a long prompt": (refusal(400, "This model's maximum context length is 8 tokens."), "prompt too long"),
    "a long prompt in a good status": (said(error="maximum context length is 8 tokens"), "prompt too long"),
    "a large body": (refusal(413, "x"), "prompt too long"),
    "a refusal": (said(choices=choice(message={"content": None, "refusal": "no"})), "content filter"),
    "a refused text": (said(choices=choice(finish_reason="SAFETY")), "content filter"),
    "a crash": (refusal(500, "this prompt kills me", retry_after="0.01"), "no answer"),
}  # fmt: skip


def test_an_error_that_concerns_one_prompt_is_its_fault(tmp_path: Path, serve: Serve) -> None:
    server = serve(lambda text, before: FAULTS[text][0] if text in FAULTS else "fine")
    replies = asked(tmp_path, server, "good", *FAULTS)
    assert {name: (reply.text, reply.fault) for name, reply in replies.items()} == {
        "good": ("fine", None), **{name: ("", fault) for name, (_, fault) in FAULTS.items()},
    }  # fmt: skip
    assert all(reply.raw for reply in replies.values())


@pytest.mark.parametrize(
    ("failure", "message"),
    [
        (refusal(401, f"bad key {KEY}"), r"HTTP 401: bad key \[key\]\); set FAKE_KEY to a key"),
        (
            Response(401, '{"error": "bad key KEY"}'.replace("KEY", KEY.replace("/", r"\/"))),
            r"bad key \[key\]\"",
        ),
        (
            Response(400, '{"detail": "KEY"}'.replace("KEY", KEY.replace("t", r"\u0074"))),
            r'"detail": "\[key\]"',
        ),
        (Response(403, f"<p>{quote(KEY, safe='')}</p>"), r"HTTP 403: <p>\[key\]</p>"),
        (
            said(error={"code": 401, "message": f"No key {KEY}"}),
            r"\[key\]\); set FAKE_KEY to a key",
        ),
        (said(error={"message": "Invalid API key"}), "set FAKE_KEY to a key"),
        (refusal(400, "unknown field seed"), r"field seed\); correct graph\.endpoint \(base_url"),
        (said(detail="model m does not exist"), r"correct graph\.endpoint \(base_url"),
        (Response(400, "busy\n" * 10**3), r"HTTP 400: busy busy .{200,300} …\)"),
        (refusal(429, "x", "insufficient_quota", retry_after_ms="1"), "add credit"),
        (said(error={"code": 402, "message": "no credits"}), "or add credit"),
        (said(choices=None, error=LIMITED), "HTTP 200: 429: Provider returned error.*per_minute"),
        (raw(b"later", "Retry-After: 86400", status="429 x"), r"wait \(retry-after: 86400\), set"),
        (
            Response(302, "", {"location": f"http://example.org/{quote(KEY, safe='')}"}),
            r"redirects to http://example\.org/\[key\], and redirects are not followed",
        ),
        (Response(body="<html>" + ESCAPES), r"not a chat completion: '<html>\\x1b.*base_url"),
        (said(choices=[]), "neither a prompt nor a short question: HTTP 200: the reply is not"),
        (refusal(400, "maximum context length is 8"), "answered none of 6 prompts"),
    ],
    ids=lambda value: str(value)[:70],
)
def test_an_error_that_concerns_all_prompts_is_one_sentence_with_the_remedy(
    tmp_path: Path, serve: Serve, monkeypatch: Any, failure: Response, message: str
) -> None:
    monkeypatch.setenv("FAKE_KEY", KEY)
    server = serve(lambda text, before: failure)
    with pytest.raises(EngineError, match=message) as caught:
        asked(tmp_path, server, *"abcdef", api_key_env="FAKE_KEY", retries=0)
    text = str(caught.value)
    assert caught.value.exit_status == 2
    assert text.startswith(f"graph.endpoint: {server.url}")
    assert KEY not in text
    assert visible(text) == text
    assert "\n" not in text


def slow_bytes() -> Iterator[bytes]:
    """A reply of a byte now and then, which no timeout between bytes ends."""
    yield b"HTTP/1.1 200 OK\r\nContent-Length: 1000000\r\n\r\n"
    while True:
        time.sleep(0.01)
        yield b" "


def endless() -> Iterator[bytes]:
    return chunked(itertools.repeat(b" " * 2**20))


def bomb() -> Iterator[bytes]:
    """32 MiB in 32 KiB, again and again."""
    return chunked(itertools.repeat(gzip.compress(bytes(2**25))), "Content-Encoding: gzip")


@pytest.mark.parametrize(
    ("parts", "fault"),
    [
        (slow_bytes, "the reply did not end within 0.5 seconds (total_timeout)"),
        (endless, "the reply has more than 16 MiB"),
        (bomb, "the reply has more than 16 MiB"),
    ],
)
def test_a_reply_without_end_is_a_fault_of_its_prompt(
    tmp_path: Path, serve: Serve, parts: Any, fault: str
) -> None:
    total = 0.5 if parts is slow_bytes else 60.0

    def script(text: str, before: int) -> str | Response:
        return "yes" if text == PROBE else Response(raw=parts())

    server = serve(script)
    reply = asked(tmp_path, server, "a", total_timeout=total, retries=3)["a"]
    assert (reply.text, reply.fault, reply.raw) == ("", "no answer", fault)
    assert server.request_counts == {"a": 2, PROBE: 1}  # time is up at once, not after all retries


def test_another_models_name_in_an_answer_is_noted_once(
    tmp_path: Path, serve: Serve, caplog: pytest.LogCaptureFixture
) -> None:
    def named(text: str, before: int) -> Response:
        return Response(body=json.dumps({**json.loads(YES), "model": text}))

    same = ("gpt-4o", "openai/GPT-4o", "gpt-4o-2024-08-06", "gpt-4o:latest", "gpt-4o-001")
    other = ("gpt-4o-mini", "gpt-4o-mini-2024-07-18", "gpt-4", "qwen", "gpt-4o-16k")
    server = serve(named)
    asked(tmp_path, server, *same, *other, model="gpt-4o", concurrency=1)
    serve(lambda text, before: named("qwen", 0))
    asked(tmp_path, server, *"abc", model="gpt-4o")
    place = f"graph.endpoint: {server.url} answered as model"
    assert [record.getMessage() for record in caplog.records] == [
        f"{place} {name} where gpt-4o was asked" for name in (*other, "qwen")
    ]


STATUSES = st.sampled_from(
    ["200 OK", "201 x", "302 x", "400 x", "404 x", "429 x", "500 x", "999 x"]
)
HEADERS = st.lists(
    st.sampled_from(
        ["Retry-After: 1e400", "Retry-After: nan", "Content-Encoding: gzip, gzip", "Location: ::",
         "Content-Type: text/plain; charset=klingon", "X-Should-Retry: true", "Date: \xff", "x",
         "Location: http://example.org/", "Set-Cookie: a=b; Domain=.com", "Transfer-Encoding: x"]
    ),
    max_size=2,
)  # fmt: skip
SCALARS = (
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(st.characters(), max_size=8)
)
VALUES = st.recursive(SCALARS, lambda inner: st.lists(inner, max_size=3), max_leaves=6)
NAMES = st.sampled_from(
    ["content", "refusal", "finish_reason", "prompt_tokens", "code", "message", "type"]
)
OBJECTS = st.dictionaries(NAMES, VALUES, max_size=4) | st.just(LIMITED) | VALUES
CHOICES = st.fixed_dictionaries({}, optional={"message": OBJECTS, "finish_reason": VALUES})
CHANGES = st.fixed_dictionaries(
    {},
    optional={
        "choices": st.lists(CHOICES | VALUES, max_size=2) | VALUES,
        **dict.fromkeys(("usage", "model", "error", "detail"), OBJECTS),
    },
)
BODIES = (
    CHANGES.map(lambda changes: json.dumps({**json.loads(YES), **changes}).encode())
    | (CHANGES | VALUES).map(lambda value: json.dumps(value).encode())
    | st.binary(max_size=64)
    | st.integers(0, len(YES)).map(lambda end: YES[:end].encode())
)


@given(BODIES)
def test_any_body_is_a_reply_or_a_malformed_reply(body: bytes) -> None:
    try:
        reply = read_completion(body, lambda text: text)
    except NoReplyError as error:
        problem = str(error)
        assert visible(problem) == problem
        assert "\n" not in problem
        return
    reply.text.encode()  # Parquet holds UTF-8 only
    reply.raw.encode()
    assert reply.finish in ("stop", "length", "filter")
    assert reply.prompt_tokens >= 0 <= reply.completion_tokens


@settings(max_examples=20)
@given(STATUSES, HEADERS, BODIES, st.sampled_from([None, 0, 7, 10**6]))
def test_any_response_ends_in_a_verdict_that_was_given_or_in_a_sentence(
    tmp_path_factory: Any, serve: Serve, status: str, headers: list[str], body: bytes,
    length: int | None,
) -> None:  # fmt: skip
    response = raw(body, *headers, status=status, length=length)
    server = serve(lambda text, before: "yes" if text == PROBE else response)
    chat = open_chat(tmp_path_factory.mktemp("cache"), server, retries=0, total_timeout=10.0)
    message, call = "", None
    try:
        with LlmJudge(chat, model="fake") as judge:
            [call] = judge.decide([EquivalenceCase("Who?", "Ann", "Ann.")])
    except EngineError as error:
        message = str(error)
    if call is None:
        assert message.startswith(f"graph.endpoint: {server.url}")
        assert visible(message) == message
        assert "\n" not in message
    else:
        given_one = b"<answer>True</answer>" in body and status < "3"
        assert call.verdict == "unknown" or (call.verdict == "yes" and given_one)
        assert call.fault or call.verdict == "yes"
