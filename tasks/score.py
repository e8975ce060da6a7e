"""Rewards."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from tasks.base import StageTask, model_identity
from tasks.judge import Judge
from tasks.rounds import RoundTask, ShardedTask, ShardTask
from tasks.sample import Sample


class _Scoring(RoundTask):
    entry = "pipeline.rewards.stage:run"
    reads = ("rewards", "retrieval.reranker", "index.embedder")

    def upstream(self) -> dict[str, StageTask]:
        needs: dict[str, StageTask] = {"sample": self.clone(Sample)}
        if self.settings.rewards.judged:
            needs["judge"] = self.clone(Judge)
        return needs

    def files(self) -> dict[str, Path | str]:
        reranker = self.settings.rewards.reranker or self.settings.retrieval.reranker
        return {"reranker": model_identity(reranker.model or self.settings.index.embedder.model)}


class ScoreShard(_Scoring, ShardTask):
    """One shard of a round's rewards."""

    stage = "score-shard"


class Score(_Scoring, ShardedTask):
    """Trajectories of round n with every reward term."""

    stage = "score"

    def shard(self, number: int) -> ShardTask:
        shard: Any = self.clone(ScoreShard, number=number)
        return shard  # type: ignore[no-any-return]
