"""The tools ``search`` and ``answer`` for agents that speak MCP (Model Context Protocol).

The server has no sessions: each request stands alone, at the path ``/mcp``.
"""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import AsyncIterator
from typing import Any

from fastapi import FastAPI
from mcp.server.mcpserver import MCPServer
from mcp.server.transport_security import TransportSecuritySettings

from pipeline.retrieval.base import Query
from pipeline.retrieval.remote.batcher import Batcher
from pipeline.retrieval.remote.wire import MAX_BODY, MAX_TEXT
from pipeline.serving.policy import ServedPolicy


def add_tools(app: FastAPI, batcher: Batcher, policy: ServedPolicy | None) -> None:
    """Add ``/mcp`` to an application; without a policy there is only the tool ``search``."""
    server = MCPServer("steep", log_level="ERROR")

    @server.tool()
    async def search(query: str) -> list[dict[str, Any]]:
        """Search the documents. Returns passages and facts with title, text and score."""
        text = query.strip()[:MAX_TEXT]
        if not text:
            raise ValueError("the query is empty")
        [items] = await batcher.retrieve([Query(text, (text,))])
        return [dataclasses.asdict(item) for item in items]

    if policy is not None:

        @server.tool()
        async def answer(question: str) -> dict[str, Any]:
            """Answer a question by searching the documents. Returns the answer and its sources."""
            trajectory = await policy.answer(question)
            return {"answer": trajectory.answer, "sources": policy.sources(trajectory)}

    # Requests of other sites were refused before (`pipeline.retrieval.remote.server`).
    mounted = server.streamable_http_app(
        stateless_http=True,
        json_response=True,
        max_request_body_size=MAX_BODY,
        transport_security=TransportSecuritySettings(enable_dns_rebinding_protection=False),
    )
    app.router.routes.extend(mounted.routes)

    @contextlib.asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        async with server.session_manager.run():
            yield

    app.router.lifespan_context = lifespan
