"""The models of a served policy: the policy with its searches, and the plain policy.

The question of a request to the first is its last message of the user. The whole roll-out runs
here, and the message of the answer has ``metadata`` with the steps, the sources, and how the
trajectory ended. The model `PLAIN` is the policy without this loop (`pipeline.serving.turns`).
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Annotated, Any

from fastapi import APIRouter
from pydantic import Field

from pipeline.core.errors import InputError
from pipeline.core.records import Trajectory
from pipeline.rollout.conversations.messages import uniform
from pipeline.serving.completions import Asked, Body, NotFound, Watch, completion, completion_routes
from pipeline.serving.policy import ServedPolicy
from pipeline.serving.turns import PlainModel, TurnRequest

PLAIN = "policy"


class _Question(Asked):
    """A request for an answer; decoding has the settings of the evaluation."""

    without_effect = Asked.without_effect | {
        "max_completion_tokens", "max_tokens", "parallel_tool_calls", "seed", "stop", "temperature",
        "top_p",
    }  # fmt: skip
    as_served = Asked.as_served | {
        "response_format": ({"type": "text"},),
        "tool_choice": ("auto", "none"),
        "tools": ([],),
    }
    instead = Asked.instead | dict.fromkeys(
        ("response_format", "tool_choice", "tools"),
        f"the model searches by itself; use the model {PLAIN}",
    )

    messages: Annotated[list[dict[str, Any]], Field(min_length=1)]

    def question(self) -> str:
        texts = [one["content"] for one in uniform(self.messages) if one["role"] == "user"]
        if not texts:
            raise InputError("messages: there is none of the user; add the question as one")
        return str(texts[-1])


def chat_routes(policy: ServedPolicy, plain: PlainModel) -> APIRouter:
    """The routes of the protocol."""

    async def complete(
        body: Body, headers: Mapping[str, str], watch: Watch | None
    ) -> dict[str, Any]:
        model = Asked.model_validate(body).model
        if model == PLAIN:
            return await plain.complete(TurnRequest.of(body), headers)
        if model not in (None, policy.name):
            raise NotFound(f"there is no model {model!r:.80}; use {policy.name} or {PLAIN}")
        asked = _Question.of(body)
        return await _answer(policy, await policy.answer(asked.question(), watch))

    return completion_routes([policy.name, PLAIN], complete)


async def _answer(policy: ServedPolicy, trajectory: Trajectory) -> dict[str, Any]:
    """A completion whose message has the answer and ``metadata``."""
    tokens = trajectory.tokens
    metadata = {
        "policy": trajectory.policy,
        "stop": trajectory.stop,
        "format_ok": trajectory.format_ok,
        "format_error": trajectory.format_error,
        "steps": [dataclasses.asdict(step) for step in trajectory.steps],
        "sources": await policy.sources(trajectory),
    }
    message = {"role": "assistant", "content": trajectory.answer or "", "metadata": metadata}
    ended = "length" if trajectory.stop == "max_tokens" else "stop"
    prompt = len(trajectory.prompt_ids) + tokens.retrieved
    return completion(policy.name, message, ended, (prompt, tokens.thinking))
