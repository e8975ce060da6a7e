"""The interface of a generation engine: token-id requests in, finished segments out.

An engine keeps many requests in flight (continuous batching), so that the sampler can retrieve for
some trajectories while others are still generated. A result holds exactly the ids that were
sampled, and its text is the decoding of those ids. A stop string may end inside a token (``>`` and
a newline can be one token). The ids and the text then extend past the stop string, and both are
kept unchanged: text is never tokenized again.
"""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from pipeline.core.errors import EngineError
from pipeline.llm.tokenizer import Tokenizer


class EngineEnded(EngineError):
    """The engine has ended: no later request is answered."""


FinishReason = Literal["stop", "length", "eos", "error"]


@dataclass(frozen=True, slots=True)
class GenerationRequest:
    """One segment to generate after ``prompt_ids``.

    ``max_tokens`` bounds the segment alone. Generation ends at any string of ``stop``. Temperature
    0 is greedy decoding, for which ``top_p`` and ``seed`` are ignored. ``constraint`` is the
    grammar of the segment, a structural tag of xgrammar
    (`pipeline.rollout.conversations.call_grammar`).
    """

    id: str
    prompt_ids: list[int]
    max_tokens: int
    stop: tuple[str, ...]
    temperature: float
    top_p: float
    seed: int
    constraint: str | None = None


@dataclass(frozen=True, slots=True)
class GenerationResult:
    """A finished segment.

    ``token_ids`` are the ids as sampled, including an end-of-sequence id. ``logprobs`` are their
    log-probabilities in nats under the distribution that was sampled from (temperature and top-p
    applied; the unmodified distribution for greedy decoding), or None where the engine has none.
    ``text`` decodes the ids, including sampled control tokens but without the id that ended the
    sequence (`pipeline.llm.tokens.segment_text`). ``finish`` is "stop" for a stop string,
    "length" for the token budget, "eos" for an end-of-sequence id and "error" where the grammar of
    a constraint could not be followed.
    """

    id: str
    token_ids: list[int]
    logprobs: Sequence[float | None]
    text: str
    finish: FinishReason


class Engine(ABC):
    """A language model that generates many segments concurrently.

    ``max_model_len`` bounds prompt plus segment in tokens. ``seconds`` accumulates the wall-clock
    time spent in `step`.
    """

    tokenizer: Tokenizer
    max_model_len: int
    seconds: float = 0.0

    @abstractmethod
    def add(self, request: GenerationRequest) -> None:
        """Queue a request; its id must differ from the ids of all unfinished requests.

        Raises EngineEnded when no request can be queued any more. Any other exception concerns this
        request alone, which is then not queued.
        """

    @abstractmethod
    def unfinished(self) -> int:
        """Number of requests that are queued or in progress."""

    @abstractmethod
    def close(self) -> None:
        """Free the model; the engine cannot be used afterwards."""

    @abstractmethod
    def _advance(self) -> list[GenerationResult]:
        """Generate for one scheduling step; returns the requests that finished in it."""

    def step(self) -> list[GenerationResult]:
        """Advance all requests; returns the requests that finished, in any order.

        Raises EngineError when generation fails.
        """
        start = time.perf_counter()
        try:
            return self._advance()
        finally:
            self.seconds += time.perf_counter() - start

    def generate(self, requests: Sequence[GenerationRequest]) -> list[GenerationResult]:
        """Run all requests to completion; results are in input order."""
        for request in requests:
            self.add(request)
        results: dict[str, GenerationResult] = {}
        while len(results) < len(requests):
            results.update((result.id, result) for result in self.step())
        return [results[request.id] for request in requests]
