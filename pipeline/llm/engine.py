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
from pathlib import Path
from typing import Literal

from pipeline.config.base import EngineConfig
from pipeline.core.errors import ConfigError, InputError
from pipeline.core.model_files import TORCH_WEIGHTS
from pipeline.core.shipped import find_model
from pipeline.grammars.tokenizer import Tokenizer
from pipeline.llm.adapter_files import adapter_settings

FinishReason = Literal["stop", "length", "eos"]


@dataclass(frozen=True, slots=True)
class GenerationRequest:
    """One segment to generate after ``prompt_ids``.

    ``max_tokens`` bounds the segment alone. Generation ends at any string of ``stop``. Temperature
    0 is greedy decoding, for which ``top_p`` and ``seed`` are ignored.
    """

    id: str
    prompt_ids: list[int]
    max_tokens: int
    stop: tuple[str, ...]
    temperature: float
    top_p: float
    seed: int


@dataclass(frozen=True, slots=True)
class GenerationResult:
    """A finished segment.

    ``token_ids`` are the ids as sampled, including an end-of-sequence id. ``logprobs`` are their
    log-probabilities in nats under the distribution that was sampled from (temperature and top-p
    applied; the unmodified distribution for greedy decoding). ``text`` decodes the ids, including
    sampled control tokens but without the id that ended the sequence
    (`pipeline.grammars.tokens.segment_text`). ``finish`` is "stop" for a stop string, "length" for
    the token budget and "eos" for an end-of-sequence id.
    """

    id: str
    token_ids: list[int]
    logprobs: list[float]
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
        """Queue a request; its id must differ from the ids of all unfinished requests."""

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


def open_engine(
    config: EngineConfig,
    model: Path | str,
    *,
    adapter: Path | None,
    seed: int,
    workspace: Path | None = None,
    key: str = "model.base",
) -> Engine:
    """Load a model, optionally with a LoRA adapter, into the configured engine.

    ``adapter`` is a PEFT directory. With ``adapters: merged`` it is merged into the base below
    ``workspace``, where engines of the same policy share the merged model; None uses a temporary
    directory that is deleted with the engine. ``key`` is the configuration key of the model's name,
    for error messages.

    Raises InputError for a model directory without weights and for an adapter that would not change
    the model as its files say (`check_adapter`), DependencyError when the engine's package is
    missing, ConfigError for the scripted engine and for an adapter that merging would blur, and
    EngineError when the model cannot be loaded.
    """
    model = find_model(model)
    check_model(model, key)
    if adapter is not None:
        adapter_settings(adapter)  # before the engine's packages are imported
    if config.kind == "vllm":
        from pipeline.llm.vllm_engine import VllmEngine

        return VllmEngine(config, model, adapter=adapter, seed=seed, workspace=workspace)
    if config.kind == "transformers":
        from pipeline.llm.transformers_engine import TransformersEngine

        return TransformersEngine(config, model, adapter=adapter, workspace=workspace)
    raise ConfigError(
        f"engine.kind is {config.kind!r}, which only tests can construct; expected vllm or "
        "transformers"
    )


def check_model(model: Path | str, key: str = "model.base") -> None:
    """Check that a local model directory holds a configuration and weights.

    A name such as ``organization/model`` that is not a local directory is resolved by the model hub
    later. ``key`` is the configuration key of the name. Raises InputError for an incomplete or
    missing directory.
    """
    directory = Path(model)
    if not directory.is_dir():
        name = str(model)
        if directory.exists():
            raise InputError(f"{name} is a file; expected a model directory; correct {key}")
        if isinstance(model, Path) or name.startswith((".", "/", "~")) or name.count("/") != 1:
            raise InputError(f"{name}: no such model directory; correct {key}")
        if directory.parent.is_dir():
            raise InputError(f"{name}: no such directory in {directory.parent}; correct {key}")
        return
    if not (directory / "config.json").is_file():
        raise InputError(
            f"{directory} has no config.json, so it is not a model directory; correct {key}"
        )
    if not any(path.suffix in TORCH_WEIGHTS for path in directory.iterdir()):
        raise InputError(
            f"{directory} has no weights (expected model.safetensors); download or train the model "
            f"(`python -m benchmarks.tiny_reader.train` for the tiny reader), or point {key} at a "
            "complete directory"
        )
