"""Preference pairs."""

from __future__ import annotations

from typing import Any

from tasks.base import StageTask
from tasks.rounds import RoundTask
from tasks.score import Score


class Pair(RoundTask):
    """Preference pairs of round n, and what became of every other path."""

    stage = "pair"
    entry = "pipeline.pairs.stage:run"
    reads = ("pairs", "prompt", "grammar", "seed")

    def slice(self) -> dict[str, Any]:
        chosen = super().slice()
        if self.settings.rewards.kind == "hiprag":
            chosen["pairing"] = (
                2  # three partners of a chosen path; TeaRAG's pairs are as they were
            )
        return chosen

    def upstream(self) -> dict[str, StageTask]:
        return {"score": self.clone(Score)}
