"""OpenAI's protocol for chat completions, over a policy that searches.

``POST /v1/chat/completions`` takes the last message of the user as the question. The whole roll-out
runs here, and the message of the answer has ``metadata`` with the steps, the sources, and how the
trajectory ended. With ``stream`` the answer comes as one piece when it is there. ``GET /v1/models``
names the policy. Errors have OpenAI's form, so that its clients raise their usual exceptions, and
repeat a request that came while the engine starts.
"""

from __future__ import annotations

import dataclasses
import json
import time
import uuid
from collections.abc import AsyncIterator
from typing import Annotated, Any, Literal

from fastapi import APIRouter, Request
from pydantic import BaseModel, Field, ValidationError
from starlette.responses import JSONResponse, Response, StreamingResponse

from pipeline.core.errors import InputError, SteepError
from pipeline.core.records import Trajectory
from pipeline.retrieval.remote.wire import MAX_BODY
from pipeline.serving.policy import Busy, ServedPolicy


class _Part(BaseModel):
    type: Literal["text"]
    text: str


class _Message(BaseModel):
    role: str
    content: str | list[_Part] | None = None

    def text(self) -> str:
        if isinstance(self.content, list):
            return "\n".join(part.text for part in self.content)
        return self.content or ""


class _Completion(BaseModel):
    """The fields that are read; decoding has the settings of the evaluation."""

    messages: Annotated[list[_Message], Field(min_length=1)]
    model: str | None = None
    stream: bool = False
    n: Literal[1] | None = None

    def question(self) -> str:
        texts = [one.text() for one in self.messages if one.role == "user"]
        if not texts:
            raise InputError("messages has no message of the user; add the question as one")
        return texts[-1]


def chat_routes(policy: ServedPolicy) -> APIRouter:
    """The routes of the protocol."""
    router = APIRouter()
    created = int(time.time())

    @router.get("/v1/models")
    async def models() -> dict[str, Any]:
        model = {"id": policy.name, "object": "model", "created": created, "owned_by": "steep"}
        return {"object": "list", "data": [model]}

    @router.post("/v1/chat/completions")
    async def complete(request: Request) -> Response:
        size = request.headers.get("content-length", "")
        if not size.isdigit() or int(size) > MAX_BODY:
            return _refusal(f"expected a Content-Length of at most {MAX_BODY:,} bytes", 413)
        try:
            asked = _Completion.model_validate_json(await request.body())
            if asked.model not in (None, policy.name):
                return _refusal(f"there is no model {asked.model!r:.80}; use {policy.name}", 404)
            trajectory = await policy.answer(asked.question())
        except ValidationError as error:
            fault = error.errors(include_input=False, include_url=False)[0]
            where = ".".join(map(str, fault["loc"])) or "body"
            return _refusal(f"{where}: {fault['msg']}", 400)
        except InputError as error:
            return _refusal(str(error), 400)
        except Busy as error:
            return _refusal(str(error), error.status)
        except SteepError as error:
            return _refusal(str(error), 500)
        whole = _completion(policy, trajectory)
        if asked.stream:
            return StreamingResponse(_chunks(whole), media_type="text/event-stream")
        return JSONResponse(whole)

    return router


def _refusal(problem: str, status: int) -> Response:
    kind = "invalid_request_error" if status < 429 else "server_error"
    error = {"message": problem, "type": kind, "param": None, "code": None}
    return JSONResponse({"error": error}, status)


def _completion(policy: ServedPolicy, trajectory: Trajectory) -> dict[str, Any]:
    """A completion with one choice, whose message has the answer and ``metadata``."""
    tokens = trajectory.tokens
    metadata = {
        "policy": trajectory.policy,
        "stop": trajectory.stop,
        "format_ok": trajectory.format_ok,
        "format_error": trajectory.format_error,
        "steps": [dataclasses.asdict(step) for step in trajectory.steps],
        "sources": policy.sources(trajectory),
    }
    message = {"role": "assistant", "content": trajectory.answer or "", "metadata": metadata}
    prompt = len(trajectory.prompt_ids) + tokens.retrieved
    return {
        "id": f"chatcmpl-{uuid.uuid4().hex}",
        "object": "chat.completion",
        "created": int(time.time()),
        "model": policy.name,
        "choices": [
            {
                "index": 0,
                "message": message,
                "finish_reason": "length" if trajectory.stop == "max_tokens" else "stop",
                "logprobs": None,
            }
        ],
        "usage": {
            "prompt_tokens": prompt,
            "completion_tokens": tokens.thinking,
            "total_tokens": prompt + tokens.thinking,
        },
    }


async def _chunks(whole: dict[str, Any]) -> AsyncIterator[str]:
    """The completion as server-sent events: the message, the reason of its end, and the mark."""
    [choice] = whole["choices"]
    common = {**whole, "object": "chat.completion.chunk"}
    usage = common.pop("usage")
    ended = {"index": 0, "delta": {}, "finish_reason": choice["finish_reason"]}
    pieces: list[dict[str, Any]] = [
        {**common, "choices": [{"index": 0, "delta": choice["message"], "finish_reason": None}]},
        {**common, "choices": [ended], "usage": usage},
    ]
    for piece in pieces:
        yield f"data: {json.dumps(piece)}\n\n"
    yield "data: [DONE]\n\n"
