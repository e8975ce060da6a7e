"""The blocks ``judges`` and ``evaluation``: judges of steps, and evaluation of every policy.

``evaluation.retrieval`` and ``evaluation.sampling`` hold only the settings that differ from the
blocks ``retrieval`` and ``sampling`` of the run. `Config.for_evaluation` merges them.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field, field_validator, model_validator

from pipeline.config.base import (
    AskedModel,
    Block,
    Share,
    Temperature,
)
from pipeline.config.knowledge import Retrieval
from pipeline.config.policy import Sampling
from pipeline.core.answer_metrics import CoverMatch


class Noise(Block):
    """Label noise for experiments: a share of the verdicts is flipped."""

    share: Share = Field(description="share of the verdicts that are flipped")


class JudgeModel(AskedModel):
    """The judge of over-search or of under-search.

    ``openai``: a model behind an OpenAI-compatible endpoint; ``vllm``: a model in this process;
    ``closed-world``: the facts of the generated world, which are exact.
    """

    backend: Literal["openai", "vllm", "closed-world"] = Field(
        description="the judge: a model behind an endpoint, a model in the process, or the facts "
        "of the closed world"
    )
    noisy: Noise | None = Field(None, description="for experiments: flipped labels")

    @model_validator(mode="after")
    def _model_fits_backend(self) -> JudgeModel:
        named = {"openai": self.endpoint is not None, "vllm": self.model is not None}
        for backend, setting in (("openai", "endpoint"), ("vllm", "model")):
            if named[backend] and self.backend != backend:
                raise ValueError(
                    f"{setting} is used by backend {backend} only, and backend is {self.backend}; "
                    "remove it"
                )
            if not named[backend] and self.backend == backend:
                raise ValueError(f"backend is {backend}, which needs {setting}; add it")
        return self


class Judges(Block):
    """The judges of both kinds of error, and how they are called (HiPRAG 3.2)."""

    over: JudgeModel = Field(
        description="judge of over-search: does the policy's closed-book answer equal the "
        "conclusion"
    )
    under: JudgeModel = Field(
        description="judge of under-search: is a step without a search correct"
    )
    unknown_ceiling: Share = Field(
        0.02, description="maximum share of steps without a verdict; above it the stage fails"
    )

    @property
    def exact(self) -> bool:
        """Whether the facts of the generated world decide at least one kind of error."""
        return "closed-world" in (self.over.backend, self.under.backend)


BASE = "base"  # the name of the untrained base model among policies
# The blocks whose settings evaluation may override.
OVERRIDDEN: Mapping[str, type[Block]] = {"retrieval": Retrieval, "sampling": Sampling}
# Settings of sampling that evaluation does not read from there, and what to set instead.
_ELSEWHERE = {
    "temperature": "set evaluation.temperature",
    "recorded": "steep submit measures answers of a file; remove it",
    "samples": "an evaluation samples one trajectory per question; remove it",
    "shards": "set shards, the number of the run",
}

Overrides = Annotated[dict[str, Any], BeforeValidator(lambda value: {} if value is None else value)]


class Evaluation(Block):
    """Evaluation of every policy: one trajectory per question of a split."""

    temperature: Temperature = Field(0.0, description="sampling temperature; 0: greedy")
    split: Literal["test", "validation"] = Field("test", description="questions to evaluate on")
    final_split: Literal["test", "validation"] | None = Field(
        None,
        description="questions on which the last policy alone is evaluated too: with split "
        "validation and final_split test, rounds are compared by validation; null: none",
    )
    cem: CoverMatch = Field(
        "words",
        description="cover exact match, in HiPRAG's reward too: a gold answer as whole words of "
        "the answer, or as a substring after punctuation became a space (HiPRAG's released code)",
    )
    average: Literal["all", "all-questions"] = Field(
        "all",
        description="average of headlines: all is over data sets, as in TeaRAG's tables, "
        "all-questions over questions, as in HiPRAG's; tables show both where they differ",
    )
    retrieval: Overrides = Field(
        {},
        description="settings of `retrieval` that differ in evaluation, such as `{top_k: 3}`; "
        "indexes that only evaluation needs are built too",
    )
    sampling: Overrides = Field(
        {},
        description="settings of the block `sampling` that differ in evaluation: `{max_steps: 3}`",
    )
    judges: Judges | None = Field(
        None, description="judges of evaluated policies; null: the judges of the rounds"
    )

    @field_validator("sampling")
    @classmethod
    def _read_in_evaluation(cls, value: dict[str, Any]) -> dict[str, Any]:
        for name, remedy in _ELSEWHERE.items():
            if name in value:
                raise ValueError(f"{name} cannot be set here; {remedy}")
        return value

    @model_validator(mode="after")
    def _splits_differ(self) -> Evaluation:
        if self.final_split == self.split:
            raise ValueError(
                f"final_split and split are both {self.split}; remove final_split, or set split to "
                "the other one"
            )
        return self
