"""Any body, parameter or tool schema is answered, or refused in OpenAI's form, and ends nothing."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from fastapi import FastAPI
from hypothesis import given, settings
from hypothesis import strategies as st
from starlette.testclient import TestClient

from pipeline.serving.recorder import Log, RecordedModel, recorder_routes
from tests.conversations.shipped_templates import SEARCH
from tests.serving.scripted_policy import (
    DECODING,
    ScriptedProcess,
    chat_client,
    scripted_policy,
    tokenizer_of,
)
from tests.serving.test_turns import CALL, QUESTION

QUIET: dict[str, Any] = {"model": "policy", "messages": [QUESTION], "max_tokens": 3}
WORDS = st.sampled_from(
    ["", "x", "search", "policy", "auto", "required", "function", "text", "json_object", "user", "tool",
     "assistant", "object", "string", "#", "#/$defs/a", "http://127.0.0.1:9/", "(", "é\0\n<|im_end|>"]
)  # fmt: skip
NUMBERS = st.sampled_from([0, 1, -1, 2, 5, 0.5, 2.5, -0.0, 1e300, 10**30, 2**63, -(2**63)])
SCALARS = st.one_of(st.none(), st.booleans(), NUMBERS, WORDS)
KEYS = st.sampled_from(
    ["type", "function", "name", "parameters", "role", "content", "tool_calls", "arguments", "id",
     "tool_call_id", "text", "json_schema", "schema", "include_usage", "q"]
)  # fmt: skip
VALUES = st.recursive(
    SCALARS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(KEYS, inner, max_size=4),
    max_leaves=8,
)
TYPES = st.sampled_from(["string", "integer", "object", "array", "null", "any", 5])
SCHEMAS = st.recursive(
    st.booleans() | st.none() | st.fixed_dictionaries({"type": TYPES}),
    lambda inner: st.fixed_dictionaries(
        {},
        optional={
            "type": TYPES | st.lists(TYPES, max_size=3),
            "properties": st.dictionaries(WORDS, inner, max_size=3),
            "required": st.lists(WORDS, max_size=2),
            "items": inner,
            "anyOf": st.lists(inner, max_size=3),
            "allOf": st.lists(inner, max_size=3),
            "not": inner,
            "additionalProperties": inner,
            "enum": st.lists(SCALARS, max_size=3),
            "const": SCALARS,
            "pattern": WORDS,
            "minLength": NUMBERS,
            "maxItems": NUMBERS,
            "multipleOf": NUMBERS,
            "$ref": WORDS,
            "$defs": st.dictionaries(st.sampled_from(["a", "b"]), inner, max_size=2),
            "$id": WORDS,
            "$schema": WORDS,
        },
    ),
    max_leaves=10,
)
TOOLS = st.lists(
    st.builds(
        lambda name, schema: {"type": "function", "function": {"name": name, "parameters": schema}},
        WORDS | st.sampled_from(["f", "g"]),
        SCHEMAS,
    )
    | st.just(SEARCH),
    max_size=3,
)
MESSAGES = st.lists(
    st.fixed_dictionaries(
        {"role": st.sampled_from(["system", "developer", "user", "assistant", "tool", "x"])},
        optional={"content": WORDS | VALUES, "tool_calls": VALUES, "tool_call_id": SCALARS},
    ),
    max_size=4,
).map(lambda given: [*given, QUESTION])
FIELDS: dict[str, Any] = {
    "messages": MESSAGES | VALUES,
    "tools": TOOLS | VALUES,
    "tool_choice": st.sampled_from(
        ["auto", "none", "required", {"type": "function", "function": {"name": "f"}}]
    )
    | VALUES,
    "response_format": st.builds(
        lambda schema: {"type": "json_schema", "json_schema": {"name": "x", "schema": schema}}, SCHEMAS
    )
    | VALUES,
    "stream": st.booleans() | VALUES,
    "model": st.just("policy") | WORDS | NUMBERS,
    **dict.fromkeys(
        ("temperature", "top_p", "max_tokens", "max_completion_tokens", "stop", "seed", "n", "logprobs",
         "top_logprobs", "logit_bias", "presence_penalty", "frequency_penalty", "user", "metadata",
         "parallel_tool_calls", "stream_options", "functions", "other"),
        VALUES,
    ),
}  # fmt: skip
BODIES = (
    st.lists(st.sampled_from(sorted(FIELDS)), max_size=3, unique=True)
    .flatmap(lambda names: st.fixed_dictionaries({name: FIELDS[name] for name in names}))
    .map(lambda drawn: json.dumps(QUIET | drawn))
)
RAW = st.binary(max_size=40) | st.builds(
    lambda text, at, put: (text[:at] + put + text[at:]).encode("utf-8", "surrogatepass"),
    BODIES, st.integers(0, 60), st.sampled_from(["NaN", "[", "{", '"', "\ud83d", "\\ud83d", ",", "1e999"]),
)  # fmt: skip


def check(client: httpx.Client, body: str | bytes) -> None:
    """Send a body; the answer is a completion or an error, and the next request is answered."""
    reply = client.post("/v1/chat/completions", content=body)
    if reply.status_code == 200:
        assert reply.headers["content-type"].startswith(("application/json", "text/event-stream"))
        assert '"choices"' in reply.text
    else:
        assert 400 <= reply.status_code < 500, (body, reply.text)
        assert reply.json()["error"].keys() == {"message", "type", "param", "code"}
        assert reply.json()["error"]["message"]
    assert client.post("/v1/chat/completions", json=QUIET).status_code == 200


@pytest.fixture(scope="module", params=["served", "recorded"])
def client(request: Any, tmp_path_factory: Any) -> Iterator[httpx.Client]:
    tokenizer = tokenizer_of("qwen3_training")
    policy = scripted_policy(ScriptedProcess(lambda *_: CALL, tokenizer))
    path: Path = tmp_path_factory.mktemp("recorded") / "r.jsonl"
    log = Log(path)
    if request.param == "served":
        yield chat_client(policy, tokenizer)
    else:
        recorded = RecordedModel(policy, lambda: tokenizer, DECODING, log=log, policy_id="f" * 64)
        app = FastAPI()
        app.include_router(recorder_routes(recorded, "policy"))
        yield TestClient(app)
    log.close()
    Log(path).close()  # every line can be read


def try_bodies(client: httpx.Client, examples: int) -> None:
    @settings(max_examples=examples, deadline=None)
    @given(BODIES | RAW)
    def tried(body: str | bytes) -> None:
        check(client, body)

    tried()


def test_any_request_is_answered_or_refused(client: httpx.Client) -> None:
    try_bodies(client, 25)


def test_a_body_in_chunks_without_a_length_is_answered(client: httpx.Client) -> None:
    body = json.dumps(QUIET).encode()
    reply = client.post("/v1/chat/completions", content=iter([body[:9], body[9:]]))
    assert (reply.request.headers["transfer-encoding"], reply.status_code) == ("chunked", 200)
