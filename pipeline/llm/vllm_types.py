"""The part of vLLM's engine interface that `pipeline.llm.vllm_engine` uses.

vLLM is an optional dependency and is never imported by the type checker, so the objects that its
untyped functions return are named here.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol


class FlatLogprobs(Protocol):
    """Log-probabilities of a segment; position t starts at ``start_indices[t]`` of ``logprobs``."""

    @property
    def start_indices(self) -> Sequence[int]: ...

    @property
    def logprobs(self) -> Sequence[float]: ...


class CompletionOutput(Protocol):
    """One generated segment; ``stop_reason`` is the stop string, or the id that ended it."""

    @property
    def token_ids(self) -> Sequence[int]: ...

    @property
    def logprobs(self) -> FlatLogprobs: ...

    @property
    def finish_reason(self) -> str | None: ...

    @property
    def stop_reason(self) -> str | int | None: ...


class RequestOutput(Protocol):
    """The state of one request; ``outputs`` has one entry, the segment of the request."""

    @property
    def request_id(self) -> str: ...

    @property
    def finished(self) -> bool: ...

    @property
    def outputs(self) -> Sequence[CompletionOutput]: ...


class EngineCore(Protocol):
    """The scheduler and its workers."""

    def shutdown(self) -> None: ...


class LLMEngine(Protocol):
    """``vllm.v1.engine.llm_engine.LLMEngine``, driven step by step."""

    @property
    def engine_core(self) -> EngineCore: ...

    def add_request(
        self,
        request_id: str,
        prompt: dict[str, list[int]],
        params: object,
        *,
        lora_request: object | None,
    ) -> object: ...

    def get_num_unfinished_requests(self) -> int: ...

    def step(self) -> Sequence[RequestOutput]: ...
