"""Preference pairs."""

from __future__ import annotations

from collections.abc import Mapping

from tasks.base import StageTask
from tasks.rounds import TRAJECTORIES, RoundTask
from tasks.score import Score


class Pair(RoundTask):
    """Preference pairs of round n, and the pairing outcome of every trajectory."""

    stage = "pair"
    entry = "pipeline.stages.pair:run"
    reads = ("pairs", "prompt", "grammar", "seed")

    @property
    def input_files(self) -> Mapping[str, tuple[str, ...]]:
        return {"score": TRAJECTORIES}

    def upstream(self) -> dict[str, StageTask]:
        return {"score": self.clone(Score)}
