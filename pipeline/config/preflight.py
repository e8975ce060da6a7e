"""Limits of the checks of training data before training."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from pipeline.config.base import Block, Execution, Share

AtLeast1 = Annotated[float, Field(ge=1, le=1e6)]


class Preflight(Block):
    """Limits of the checks of training data, before training and in `steep check --training`.

    No limit changes what is trained on, so none is in a fingerprint.
    """

    on_fault: Annotated[Literal["warn", "refuse"], Execution()] = Field(
        "warn",
        description="data beyond a limit is named in the log, or stops the stage before training",
    )
    max_over_long: Annotated[Share, Execution()] = Field(
        0.0, description="share of records that are longer than max_length of the trainer"
    )
    max_identical: Annotated[Share, Execution()] = Field(
        0.0, description="share of pairs whose sides have the same tokens"
    )
    max_duplicates: Annotated[Share, Execution()] = Field(
        0.0, description="share of records that repeat another one"
    )
    max_overlap: Annotated[Share, Execution()] = Field(
        0.0, description="share of the questions that train and repeat a held-out question"
    )
    min_kind: Annotated[Share, Execution()] = Field(
        0.02, description="smallest share of each kind of pairs that there is"
    )
    max_length_ratio: Annotated[AtLeast1, Execution()] = Field(
        2.0,
        description="largest ratio between the written tokens of chosen and rejected sides (medians), either way",
    )
    min_trained: Annotated[Share, Execution()] = Field(
        0.05, description="smallest share of the tokens after the prompts that the loss reads"
    )
