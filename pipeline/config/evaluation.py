"""The block ``evaluation``: what is measured, and the settings in which it differs from training.

``evaluation.retrieval`` and ``evaluation.sampling`` hold only the settings that differ from the blocks
``retrieval`` and ``sampling`` of the run. `Config.for_evaluation` merges them.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import PurePath
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field, field_validator

from pipeline.config.base import Block, Indirect, Shards
from pipeline.config.judging import Judges
from pipeline.config.knowledge import Retrieval
from pipeline.config.policy import Sampling
from pipeline.config.values import Items, PathOrName, Temperature
from pipeline.core.yaml_files import shown_key

BASE = "base"  # the name of the untrained base model among policies
# The blocks whose settings evaluation may override.
OVERRIDDEN: Mapping[str, type[Block]] = {"retrieval": Retrieval, "sampling": Sampling}
# Settings of sampling that evaluation does not read from there, and what to set instead.
_ELSEWHERE = {
    "temperature": "set evaluation.temperature",
    "samples": "an evaluation samples one trajectory per question; remove it",
    "shards": "set evaluation.shards",
}

_RESERVED = re.compile(r"sft|start|round-\d+|judge-.*", re.DOTALL)

Overrides = Annotated[dict[str, Any], BeforeValidator(lambda value: {} if value is None else value)]


class Evaluation(Block):
    """Evaluation of every policy: one trajectory per question of a split."""

    temperature: Temperature = Field(0.0, description="0: greedy")
    bootstrap: int = Field(
        1000, ge=1, le=1_000_000, description="resamples of the confidence intervals"
    )
    split: Literal["test", "validation"] = Field("test", description="questions to evaluate on")
    policies: Annotated[Items[PathOrName], Indirect()] = Field(
        (),
        description="policies to evaluate besides those of the run: base, the untrained model, or the "
        "directory of an adapter",
    )
    retrieval: Overrides = Field(
        {},
        description="settings of the block `retrieval` that differ in evaluation: `{top_k: 3}`; indexes that "
        "only evaluation needs are built too",
    )
    sampling: Overrides = Field(
        {},
        description="settings of the block `sampling` that differ in evaluation: `{max_steps: 3}`",
    )
    judges: Judges | None = Field(
        None, description="judges of evaluated policies; null: those of the rounds"
    )
    shards: Shards = Field(
        None, description="parts of the evaluation of a policy; null: as in the run"
    )

    @field_validator("sampling")
    @classmethod
    def _read_in_evaluation(cls, value: dict[str, Any]) -> dict[str, Any]:
        for name, remedy in _ELSEWHERE.items():
            if name in value:
                raise ValueError(f"{name} cannot be set here; {remedy}")
        return value

    @field_validator("policies")
    @classmethod
    def _names_differ(cls, value: tuple[str, ...]) -> tuple[str, ...]:
        names = [given_name(source) for source in value]
        for name, source in zip(names, value, strict=True):
            if (name == BASE and source != BASE) or _RESERVED.fullmatch(name):
                raise ValueError(
                    f"{shown_key(source)} would be called {shown_key(name)} in results, which is another "
                    "policy's name; rename the directory"
                )
            if names.count(name) > 1:
                raise ValueError(f"two policies are called {shown_key(name)}; rename a directory")
        return value


def given_name(source: str) -> str:
    """The name in results of a policy of ``evaluation.policies``: base, or that of its directory."""
    return PurePath(source).name or source
