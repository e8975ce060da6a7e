"""OpenAI's protocol for chat completions: requests, completions, streams and errors.

``POST /v1/chat/completions`` and ``GET /v1/models``. With ``stream`` the steps of a roll-out come
as pieces of ``reasoning_content``, and then the message as one piece. Errors have OpenAI's form, so
that its clients raise their usual exceptions, and repeat a request that came while the engine
starts. A field that would change the answer and is not served is refused by its name.
"""

from __future__ import annotations

import asyncio
import json
import re
import time
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Mapping, Sequence
from typing import Any, ClassVar, Self, cast

from fastapi import APIRouter, Request
from pydantic import BaseModel, ConfigDict, ValidationError
from pydantic_core import from_json
from starlette.responses import JSONResponse, Response, StreamingResponse

from pipeline.core.errors import InputError, SteepError
from pipeline.knowledge.retrieval.remote.guard import log_failure, openai_error
from pipeline.serving.policy import Busy

Body = dict[str, Any]
Completion = dict[str, Any]
Watch = Callable[[str], object]
_THERE_IS = "there are /v1/chat/completions and /v1/models, and a base_url ends in /v1"
_ELSEWHERE = {
    "/responses": "use chat completions, in the OpenAI Agents SDK by "
    "set_default_openai_api('chat_completions'), in LangChain by use_responses_api=False",
}
_PLACE = re.compile(r"[a-z_]+(?:\.[\w$-]+)*(?=: )")  # at the beginning of a message


class NotFound(InputError):
    """A request names a model or a conversation that is not there."""


class Asked(BaseModel):
    """The fields of every request for a completion that are read."""

    model_config = ConfigDict(extra="allow", strict=True)
    # Fields that do not change the answer.
    without_effect: ClassVar[set[str]] = {
        "metadata", "prediction", "prompt_cache_key", "prompt_cache_retention", "safety_identifier",
        "service_tier", "store", "user",
    }  # fmt: skip
    # Values that change nothing, of fields that are not served.
    as_served: ClassVar[dict[str, tuple[Any, ...]]] = {
        "frequency_penalty": (0,),
        "function_call": ("auto", "none"),
        "functions": ([],),
        "logit_bias": ({},),
        "logprobs": (False,),
        "modalities": (["text"],),
        "n": (1,),
        "presence_penalty": (0,),
        "top_logprobs": (0,),
    }
    instead: ClassVar[dict[str, str]] = {
        "functions": "declare them as tools",
        "logprobs": "steep record writes the log-probabilities of a turn to its file",
        "n": "send as many requests",
    }

    model: str | None = None
    stream: bool | None = None
    stream_options: dict[str, Any] | None = None

    @classmethod
    def of(cls, body: Body) -> Self:
        """The fields of a request.

        Raises ValidationError, or InputError for a field that would change the answer and is not
        served.
        """
        asked = cls.model_validate(
            {name: value for name, value in body.items() if value is not None}
        )
        for name, value in (asked.model_extra or {}).items():
            same = value in asked.as_served.get(name, ()) and value is not True
            if not same and name not in asked.without_effect:
                instead = asked.instead.get(name, "leave it out")
                raise InputError(f"{name}: {json.dumps(value):.60} is not served here; {instead}")
        return asked


def completion_routes(
    models: Sequence[str],
    complete: Callable[[Body, Mapping[str, str], Watch | None], Coroutine[Any, Any, Completion]],
) -> APIRouter:
    """The routes of the protocol over ``complete``: from body and headers to a completion.

    For a stream it gets a function that takes the text so far, after each step. It then goes on
    when its client has left, since other clients may wait for the same answer.
    """
    router = APIRouter()
    created = int(time.time())
    running: set[asyncio.Task[Completion]] = set()

    known = {
        name: {"id": name, "object": "model", "created": created, "owned_by": "steep"}
        for name in models
    }

    @router.get("/v1/models")
    async def listed() -> dict[str, Any]:
        return {"object": "list", "data": list(known.values())}

    @router.get("/v1/models/{name:path}")
    async def described(name: str) -> Response:
        if name in known:
            return JSONResponse(known[name])
        return _refusal(f"there is no model {name!r:.80}; use {' or '.join(known)}", 404)

    @router.post("/v1/chat/completions")
    async def completed(request: Request) -> Response:
        async def complete_body(body: Body) -> Response:
            streamed, options = (asked := Asked.model_validate(body)).stream, asked.stream_options
            apart = bool((options or {}).get("include_usage"))
            if streamed:
                texts: asyncio.Queue[str | None] = asyncio.Queue()
                task = asyncio.create_task(complete(body, request.headers, texts.put_nowait))
                running.add(task)
                task.add_done_callback(running.discard)
                task.add_done_callback(lambda _: texts.put_nowait(None))
                # Read the error, which asyncio reports otherwise when the client has left.
                task.add_done_callback(lambda done: done.cancelled() or done.exception())
                if (first := await texts.get()) is not None:
                    events = _steps(models[0], first, texts, task, apart)
                    return StreamingResponse(events, media_type="text/event-stream")
                events = _chunks(await task, apart)
                return StreamingResponse(events, media_type="text/event-stream")
            return JSONResponse(await complete(body, request.headers, None))

        return await respond(request, complete_body)

    async def elsewhere(request: Request) -> Response:
        path = request.url.path
        if path == "/v1/chat/completions" or path.startswith("/v1/models"):
            allowed = "GET" if "models" in path else "POST"
            return _refusal(f"{path} takes {allowed}", 405, {"Allow": allowed})
        for end, remedy in _ELSEWHERE.items():
            if path.endswith(end):
                return _refusal(f"there is no {path} here: {remedy}", 404)
        return _refusal(f"there is no {path} here; {_THERE_IS}", 404)

    methods = ["GET", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"]
    for path in ("/v1/{rest:path}", "/chat/completions", "/responses", "/models", "/completions"):
        router.add_route(path, elsewhere, methods)
    return router


async def respond(request: Request, made: Callable[[Body], Awaitable[Response]]) -> Response:
    """The response that ``made`` makes of the request's body, or its error in OpenAI's form.

    The guard of the service has read the body, whose length it limits.
    """
    try:
        return await made(_object(await request.body()))
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
    except Exception as error:  # noqa: BLE001 - it is the answer of this request alone
        return _refusal(_failure(error), 500)


def _object(body: bytes) -> Body:
    """The JSON object of a body. Raises InputError for another, NaN, and deep nesting."""
    try:
        value = from_json(body, allow_inf_nan=False)
        json.dumps(value, allow_nan=False)  # 1e999 is read as infinity
    except ValueError as error:
        raise InputError(f"the body is not JSON: {error}") from None
    if not isinstance(value, dict):
        raise InputError(f"the body is a JSON {type(value).__name__}; send an object")
    return value


def _failure(error: BaseException) -> str:
    """The message of an error; an error of another package is also logged."""
    if isinstance(error, SteepError):
        return str(error)
    log_failure("completion", error)
    return f"{type(error).__name__}: {error}; please report it"


def _refusal(problem: str, status: int, headers: dict[str, str] | None = None) -> Response:
    return JSONResponse(_error(problem, status), status, headers)


def _error(problem: str, status: int) -> dict[str, Any]:
    place = _PLACE.match(problem)
    return openai_error(problem, status, place[0] if place else None)


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
    model: str,
    first: str,
    texts: asyncio.Queue[str | None],
    task: asyncio.Task[Completion],
    apart: bool,
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
    except Exception as error:  # noqa: BLE001 - the status was sent
        yield f"data: {json.dumps(_error(_failure(error), 500))}\n\n"
        return
    async for event in _chunks({**whole, "id": about["id"]}, apart):
        yield event


async def _chunks(whole: dict[str, Any], apart: bool) -> AsyncIterator[str]:
    """The completion as server-sent events: the message, the reason of its end, and the mark.

    The usage comes with the reason, or ``apart``, as ``include_usage`` of ``stream_options`` asks.
    """
    [choice] = whole["choices"]
    common = {**whole, "object": "chat.completion.chunk"}
    usage = {"usage": common.pop("usage")}
    ended = {"index": 0, "delta": {}, "finish_reason": choice["finish_reason"]}
    delta = choice["message"]
    if calls := delta.get("tool_calls"):
        delta["tool_calls"] = [{"index": at, **call} for at, call in enumerate(calls)]
    pieces: list[dict[str, Any]] = [
        {**common, "choices": [{"index": 0, "delta": delta, "finish_reason": None}]},
        {**common, "choices": [ended], **({} if apart else usage)},
        *([{**common, "choices": [], **usage}] if apart else ()),
    ]
    for piece in pieces:
        yield f"data: {json.dumps(piece)}\n\n"
    yield "data: [DONE]\n\n"
