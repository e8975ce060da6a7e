"""Preference pairs."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from tasks.base import TRAJECTORIES, LightTask, RoundTask, StageTask
from tasks.fingerprint import tool_files
from tasks.score import Score


class Pair(RoundTask, LightTask):
    """Preference pairs of round n, and the pairing outcome of every trajectory."""

    stage = "pair"
    help = "preference pairs of a round"
    version = 2
    entry = "pipeline.stages.pair:run"
    reads = ("pairs", "prompt", "grammar", "seed")

    def files(self) -> dict[str, Path | str]:
        return tool_files(self.settings)

    @property
    def input_files(self) -> Mapping[str, tuple[str, ...]]:
        return {"score": TRAJECTORIES}

    def upstream(self) -> dict[str, StageTask]:
        return {"score": self.clone(Score)}
