"""The tools for agents that speak MCP, by the official client and by hostile ones."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipeline.core.errors import RetrievalError
from pipeline.knowledge.retrieval.remote.server import create_app
from pipeline.serving.mcp_tools import add_tools
from pipeline.serving.policy import ServedPolicy
from tests.retrieval.served import IDENTITY, FakeRetriever, Running
from tests.waiting import LIMIT

HEADERS = {"accept": "application/json, text/event-stream", "content-type": "application/json"}


@pytest.fixture(scope="module")
def address() -> Iterator[str]:
    bad = {"bad": RetrievalError("retrieval failed"), "crash": LookupError("no such row")}
    app = create_app(FakeRetriever(bad=bad), IDENTITY, {})
    starting = ServedPolicy("sft", Path("none"), failed=pytest.fail)
    add_tools(app, app.state.batcher, starting)
    with Running(app) as running:
        yield f"{running.url}/mcp"


@pytest.fixture(scope="module")
def client(address: str) -> Iterator[httpx.Client]:
    with httpx.Client(
        base_url=address.removesuffix("/mcp"), headers=HEADERS, trust_env=False, timeout=LIMIT
    ) as opened:  # fmt: skip
        yield opened


CALL = {"name": "search", "arguments": {"query": "who?"}}


def finds(client: httpx.Client) -> bool:
    """Whether the tool ``search`` still finds its documents."""
    message = {"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": CALL}
    found = client.post("/mcp", json=message).json()["result"]["structuredContent"]["result"]
    return bool(found[0]["id"] == "c-who?")


@pytest.mark.parametrize(
    ("tool", "arguments", "reason"),
    [
        ("search", {"query": "  "}, "the query is empty; write what to search for"),
        ("search", {"query": "bad"}, "retrieval failed"),
        ("search", {"query": "crash"}, "retrieval failed: LookupError"),
        ("search", {"query": 5}, "Input should be a valid string"),
        ("search", {}, "Field required"),
        ("answer", {"question": ""}, "the question is empty; ask something"),
        ("answer", {"question": "x" * 20_001}, "20,001 characters; ask one of at most 20,000"),
        ("answer", {"question": "who?"}, "the engine of policy sft starts; ask again in a minute"),
        ("find", {"query": "who?"}, "Unknown tool: find"),
    ],
)
def test_a_client_sees_why_a_tool_failed_and_the_log_has_a_line_at_most(
    address: str,
    tool: str,
    arguments: dict[str, Any],
    reason: str,
    caplog: pytest.LogCaptureFixture,
) -> None:
    from mcp.client import Client

    async def called() -> tuple[bool, str]:
        async with Client(address) as client:
            result = await client.call_tool(tool, arguments)
            return result.is_error, result.content[0].text  # type: ignore[union-attr]

    failed, text = asyncio.run(called())
    assert failed
    assert reason in text
    assert len(caplog.records) <= (arguments == {"query": "crash"})
    assert not any(record.exc_info for record in caplog.records)


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=5,
)  # fmt: skip
MESSAGES = st.fixed_dictionaries(
    {"jsonrpc": st.just("2.0")},
    optional={
        "id": st.integers() | JSON,
        "method": st.sampled_from(["tools/call", "tools/list", "initialize", "ping", "none"]) | JSON,
        "params": st.fixed_dictionaries({"name": st.just("search"), "arguments": JSON}) | JSON,
    },
)  # fmt: skip


@given(st.one_of(MESSAGES, JSON).map(lambda value: json.dumps(value).encode()) | st.binary())
def test_any_body_is_answered(client: httpx.Client, body: bytes) -> None:
    assert client.post("/mcp", content=body).status_code in (200, 202, 400)


def test_only_post_with_json_is_served(client: httpx.Client) -> None:
    """A stream of a GET would have no events and no end, and hold a service that ends."""
    for method in ("GET", "DELETE", "PUT"):
        assert client.request(method, "/mcp").status_code == 405
    for header, status in (("content-type", 415), ("origin", 403)):
        reply = client.post("/mcp", content=b"{}", headers={header: "text/plain"})
        assert reply.status_code == status
    assert finds(client)
