"""Tasks of one round."""

from __future__ import annotations

from functools import cached_property

import luigi

from pipeline.config import Config
from tasks.base import StageTask

TRAJECTORIES = ("trajectories.parquet",)  # other stages read only this file


class RoundTask(StageTask):
    """A stage of one round of training; rounds count from 1."""

    round = luigi.IntParameter(default=1, description="round of training, from 1")

    @cached_property
    def settings(self) -> Config:
        return self.run_settings.of_round(int(self.round))

    @property
    def round_number(self) -> int | None:
        return int(self.round)
