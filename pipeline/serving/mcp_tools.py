"""The tools ``search`` and ``answer`` for agents that speak MCP (Model Context Protocol).

The server has no sessions: each request stands alone, at the path ``/mcp``. An exception in a tool
is the tool's result, with its reason.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any, ParamSpec, TypeVar

from fastapi import FastAPI
from mcp.server.mcpserver import MCPServer
from mcp.server.mcpserver.exceptions import ToolError
from mcp.server.transport_security import TransportSecuritySettings
from starlette.routing import Route

from pipeline.core.errors import InputError, SteepError
from pipeline.knowledge.retrieval.base import Query
from pipeline.knowledge.retrieval.remote.batcher import Batcher
from pipeline.knowledge.retrieval.remote.guard import log_failure
from pipeline.knowledge.retrieval.remote.wire import MAX_BODY, MAX_TEXT
from pipeline.serving.policy import ServedPolicy

P = ParamSpec("P")
T = TypeVar("T")


def add_tools(app: FastAPI, batcher: Batcher, policy: ServedPolicy | None) -> None:
    """Add ``/mcp`` to an application; without a policy there is only the tool ``search``."""
    server = MCPServer("steep", log_level="ERROR")

    @server.tool()
    @_told
    async def search(query: str) -> list[dict[str, Any]]:
        """Search the documents. Returns passages and facts with title, text and score."""
        text = query.strip()[:MAX_TEXT]
        if not text:
            raise InputError("the query is empty; write what to search for")
        [items] = await batcher.retrieve([Query(text, (text,))])
        return [dataclasses.asdict(item) for item in items]

    if policy is not None:

        @server.tool()
        @_told
        async def answer(question: str) -> dict[str, Any]:
            """Answer a question by searching the documents. Returns the answer and its sources."""
            trajectory = await policy.answer(question)
            return {"answer": trajectory.answer, "sources": await policy.sources(trajectory)}

    # Requests of other sites were refused before (`pipeline.knowledge.retrieval.remote.server`).
    mounted = server.streamable_http_app(
        stateless_http=True,
        json_response=True,
        max_request_body_size=MAX_BODY,
        transport_security=TransportSecuritySettings(enable_dns_rebinding_protection=False),
    )
    for route in mounted.routes:
        if isinstance(route, Route):
            route.methods = {"POST"}  # GET would open a stream without events or end
        app.router.routes.append(route)

    @contextlib.asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        async with server.session_manager.run():
            yield

    app.router.lifespan_context = lifespan


def _told(tool: Callable[P, Awaitable[T]]) -> Callable[P, Awaitable[T]]:
    """A tool whose clients see why it failed; what nobody expected is also logged."""

    @functools.wraps(tool)
    async def told(*arguments: P.args, **named: P.kwargs) -> T:
        try:
            return await tool(*arguments, **named)
        except SteepError as error:
            raise ToolError(str(error)) from None
        except Exception as error:  # noqa: BLE001 - the client gets it
            log_failure(f"tool {tool.__name__}", error)
            raise ToolError(f"it failed with {type(error).__name__}") from None

    return told
