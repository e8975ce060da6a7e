"""The blocks of the stage ``judge``: the models that judge steps (HiPRAG, arXiv 2510.07794, 3.2).

Input: values of a configuration file. Output: frozen models.
"""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, model_validator

from pipeline.config.base import Block, Endpoint, EngineConfig, Execution, Shards
from pipeline.config.values import PathOrName, Positive, Seed, Share


class Noise(Block):
    """Label noise for experiments: a share of the verdicts is flipped."""

    share: Share = Field(description="share of the verdicts that is flipped")
    seed: Seed = Field(0, description="seed of the choice")


class JudgeModel(Block):
    """The judge of over-search or of under-search.

    ``openai``: a model behind an OpenAI-compatible endpoint; ``vllm``: a model in this process;
    ``closed-world``: the facts of the generated world, which are exact.
    """

    backend: Literal["openai", "vllm", "closed-world"] = Field(
        description="an endpoint, a model in this process, or the facts of the generated world"
    )
    endpoint: Endpoint | None = Field(None, description="openai: the judge model")
    model: PathOrName | None = Field(None, description="vllm: the judge model")
    engine: EngineConfig = Field(EngineConfig(), description="vllm: the engine of the judge model")
    max_tokens: Positive = Field(
        64, description="limit of an answer; endpoint.thinking_tokens is added"
    )
    tries: int = Field(
        3, ge=1, le=100, description="openai: attempts at a case whose answer cannot be parsed"
    )
    noisy: Noise | None = Field(None, description="for experiments: flipped labels")

    @model_validator(mode="after")
    def _model_fits_backend(self) -> JudgeModel:
        named = {"openai": self.endpoint is not None, "vllm": self.model is not None}
        for backend, setting in (("openai", "endpoint"), ("vllm", "model")):
            if named[backend] and self.backend != backend:
                raise ValueError(
                    f"{setting} is used by backend {backend} only, and backend is {self.backend}; remove it"
                )
            if not named[backend] and self.backend == backend:
                raise ValueError(f"backend is {backend}, which needs {setting}; add it")
        return self


class Judges(Block):
    """The judges of both kinds of error, and how they are called (HiPRAG 3.2)."""

    over: JudgeModel = Field(
        description="judge of over-search: does the policy's closed-book answer equal the conclusion"
    )
    under: JudgeModel = Field(
        description="judge of under-search: is a step without a search correct"
    )
    system: str | None = Field(
        None, description="system message over closed-book questions; the paper has none"
    )
    answer_tokens: Positive = Field(
        128, description="limit of the policy's answer to a closed-book question"
    )
    batch: Annotated[Positive, Execution()] = Field(
        256, description="prompts per call of an engine"
    )
    shards: Shards = Field(None, description="parts of the judging; null: as in the run")
    unknown_ceiling: Share = Field(
        0.02, description="the stage fails above this share of steps without a verdict"
    )

    @property
    def exact(self) -> bool:
        """Whether the facts of the generated world decide at least one kind of error."""
        return "closed-world" in (self.over.backend, self.under.backend)
