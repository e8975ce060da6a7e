"""The block that says who judges the steps of a path, and when a judgement counts.

Purpose: settings of the stage ``judge`` (HiPRAG, arXiv 2510.07794, 3.2). Input: values of a
configuration file. Output: frozen models.
"""

from __future__ import annotations

from typing import Literal

from pydantic import Field, model_validator

from pipeline.config.base import Block, Endpoint, EngineConfig, Positive, Share


class Noise(Block):
    """A share of the verdicts turned round on purpose, to see what label noise does."""

    share: Share
    seed: int = 0


class JudgeModel(Block):
    """Who decides one kind of case.

    ``openai``: a model behind an OpenAI-compatible endpoint; ``vllm``: a model in this process;
    ``closed-world``: the truth of the generated world, exact.
    """

    backend: Literal["openai", "vllm", "closed-world"]
    endpoint: Endpoint | None = Field(None, description="openai: the model that judges")
    model: str | None = Field(None, description="vllm: the model that judges")
    engine: EngineConfig = EngineConfig()
    max_tokens: Positive = Field(64, description="of an answer; see endpoint.thinking_tokens")
    tries: Positive = Field(
        3, description="openai: times that a case is asked while its answer cannot be read"
    )
    noisy: Noise | None = Field(None, description="for experiments: turn verdicts round")

    @model_validator(mode="after")
    def _as_the_backend_needs(self) -> JudgeModel:
        named = {"openai": self.endpoint is not None, "vllm": self.model is not None}
        for backend, setting in (("openai", "endpoint"), ("vllm", "model")):
            if named[backend] and self.backend != backend:
                raise ValueError(f"{setting} belongs to backend {backend}; remove it")
            if not named[backend] and self.backend == backend:
                raise ValueError(f"backend {backend} needs {setting}")
        return self


class Judges(Block):
    """HiPRAG 3.2."""

    over: JudgeModel = Field(description="is the policy's own answer what the step concluded")
    under: JudgeModel = Field(description="is a step that did not search sound")
    system: str | None = Field(
        None, description="system message over the bare query that the policy answers; none in 3.2"
    )
    answer_tokens: Positive = Field(128, description="of the policy's answer to a bare query")
    batch: Positive = Field(256, description="prompts that an engine is given at once")
    unknown_ceiling: Share = Field(
        0.02, description="share of steps without a verdict above which the stage fails"
    )

    @property
    def exact(self) -> bool:
        """Whether the truth of the generated world decides one kind of case at least."""
        return "closed-world" in (self.over.backend, self.under.backend)
