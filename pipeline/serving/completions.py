"""OpenAI's protocol for chat completions: requests, completions, streams and errors.

``POST /v1/chat/completions`` and ``GET /v1/models``. With ``stream`` the steps of a roll-out come
as pieces of ``reasoning_content``, and then the message as one piece. Errors have OpenAI's form, so
that its clients raise their usual exceptions, and repeat a request that came while the engine
starts.
"""

from __future__ import annotations

import asyncio
import json
import time
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Mapping, Sequence
from typing import Any, Literal, cast

from fastapi import APIRouter, Request
from pydantic import BaseModel, ValidationError
from starlette.responses import JSONResponse, Response, StreamingResponse

from pipeline.core.errors import InputError, SteepError
from pipeline.retrieval.remote.wire import MAX_BODY
from pipeline.serving.policy import Busy


class NotFound(InputError):
    """A request names a model or a conversation that is not there."""


class Asked(BaseModel):
    """The fields of every request for a completion that are read."""

    model: str | None = None
    stream: bool | None = None
    n: Literal[1] | None = None


Completion = dict[str, Any]


def completion_routes(
    models: Sequence[str],
    complete: Callable[[bytes, Mapping[str, str]], Awaitable[Completion]],
    stream: Callable[
        [bytes, Mapping[str, str], Callable[[str], None]], Coroutine[Any, Any, Completion]
    ]
    | None = None,
) -> APIRouter:
    """The routes of the protocol over ``complete``: from body and headers to a completion.

    ``stream`` also calls a function with the text so far, after each step. It goes on when its
    client has left, since other clients may wait for the same answer.
    """
    router = APIRouter()
    created = int(time.time())
    running: set[asyncio.Task[Completion]] = set()

    @router.get("/v1/models")
    async def listed() -> dict[str, Any]:
        about = {"object": "model", "created": created, "owned_by": "steep"}
        return {"object": "list", "data": [{"id": name, **about} for name in models]}

    @router.post("/v1/chat/completions")
    async def completed(request: Request) -> Response:
        async def complete_body(body: bytes) -> Response:
            streamed = Asked.model_validate_json(body).stream
            if streamed and stream is not None:
                texts: asyncio.Queue[str | None] = asyncio.Queue()
                task = asyncio.create_task(stream(body, request.headers, texts.put_nowait))
                running.add(task)
                task.add_done_callback(running.discard)
                task.add_done_callback(lambda _: texts.put_nowait(None))
                if (first := await texts.get()) is not None:
                    events = _steps(models[0], first, texts, task)
                    return StreamingResponse(events, media_type="text/event-stream")
                whole = await task
            else:
                whole = await complete(body, request.headers)
            if streamed:
                return StreamingResponse(_chunks(whole), media_type="text/event-stream")
            return JSONResponse(whole)

        return await respond(request, complete_body)

    return router


async def respond(request: Request, made: Callable[[bytes], Awaitable[Response]]) -> Response:
    """The response that ``made`` makes of the request's body, or its error in OpenAI's form."""
    size = request.headers.get("content-length", "")
    if not size.isdigit() or int(size) > MAX_BODY:
        return _refusal(f"expected a Content-Length of at most {MAX_BODY:,} bytes", 413)
    try:
        return await made(await request.body())
    except ValidationError as error:
        fault = error.errors(include_input=False, include_url=False)[0]
        where = ".".join(map(str, fault["loc"])) or "body"
        return _refusal(f"{where}: {fault['msg']}", 400)
    except NotFound as error:
        return _refusal(str(error), 404)
    except InputError as error:
        return _refusal(str(error), 400)
    except Busy as error:
        return _refusal(str(error), error.status, {"Retry-After": str(error.seconds)})
    except SteepError as error:
        return _refusal(str(error), 500)


def _refusal(problem: str, status: int, headers: dict[str, str] | None = None) -> Response:
    kind = "invalid_request_error" if status < 429 else "server_error"
    return JSONResponse(_error(problem, kind), status, headers)


def _error(problem: str, kind: str) -> dict[str, Any]:
    return {"error": {"message": problem, "type": kind, "param": None, "code": None}}


def completion(
    model: str, message: dict[str, Any], ended: str, tokens: tuple[int, int], name: str = ""
) -> dict[str, Any]:
    """A completion with one choice; ``tokens`` of prompt and completion, ``ended`` its reason."""
    return {
        "id": name or f"chatcmpl-{uuid.uuid4().hex}",
        "object": "chat.completion",
        "created": int(time.time()),
        "model": model,
        "choices": [{"index": 0, "message": message, "finish_reason": ended, "logprobs": None}],
        "usage": {
            "prompt_tokens": tokens[0],
            "completion_tokens": tokens[1],
            "total_tokens": sum(tokens),
        },
    }


async def _steps(
    model: str, first: str, texts: asyncio.Queue[str | None], task: asyncio.Task[Completion]
) -> AsyncIterator[str]:
    """What each step adds to the text, and then the completion; an error is the last event."""
    about = {
        "id": f"chatcmpl-{uuid.uuid4().hex}",
        "object": "chat.completion.chunk",
        "created": int(time.time()),
        "model": model,
    }
    seen, text = "", cast(str | None, first)
    while text is not None:
        delta = {"role": "assistant", "reasoning_content": text[len(seen) :]}
        piece = {**about, "choices": [{"index": 0, "delta": delta, "finish_reason": None}]}
        yield f"data: {json.dumps(piece)}\n\n"
        seen, text = text, await texts.get()
    try:
        whole = await task
    except SteepError as error:
        yield f"data: {json.dumps(_error(str(error), 'server_error'))}\n\n"
        return
    async for event in _chunks({**whole, "id": about["id"]}):
        yield event


async def _chunks(whole: dict[str, Any]) -> AsyncIterator[str]:
    """The completion as server-sent events: the message, the reason of its end, and the mark."""
    [choice] = whole["choices"]
    common = {**whole, "object": "chat.completion.chunk"}
    usage = common.pop("usage")
    ended = {"index": 0, "delta": {}, "finish_reason": choice["finish_reason"]}
    delta = choice["message"]
    if calls := delta.get("tool_calls"):
        delta["tool_calls"] = [{"index": at, **call} for at, call in enumerate(calls)]
    pieces: list[dict[str, Any]] = [
        {**common, "choices": [{"index": 0, "delta": delta, "finish_reason": None}]},
        {**common, "choices": [ended], "usage": usage},
    ]
    for piece in pieces:
        yield f"data: {json.dumps(piece)}\n\n"
    yield "data: [DONE]\n\n"
