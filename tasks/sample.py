"""Trajectories."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from tasks.base import StageTask, model_identity
from tasks.corpus import Corpus
from tasks.graph import Graph
from tasks.index import Index
from tasks.policy import policy
from tasks.rounds import RoundTask, ShardedTask, ShardTask

ROLL_OUT = (
    "retrieval",
    "prompt",
    "grammar",
    "engine",
    "index.embedder",
    "model.chat_template",
    "seed",
)


def roll_out_files(task: StageTask) -> dict[str, Path | str]:
    """The models that rolling out reads besides the policy's adapter."""
    files = {"base model": model_identity(task.settings.model.base)}
    reranker = task.settings.retrieval.reranker.model
    if reranker:
        files["reranker"] = model_identity(reranker)
    return files


class _Sampling(RoundTask):
    version = 2
    entry = "pipeline.trajectory.stage:run"
    reads = ("sampling", *ROLL_OUT)

    def upstream(self) -> dict[str, StageTask]:
        return {
            "corpus": self.clone(Corpus),
            "graph": self.clone(Graph),
            "index": self.clone(Index),
            "policy": policy(self, self.round - 1),
        }

    def files(self) -> dict[str, Path | str]:
        return roll_out_files(self)


class SampleShard(_Sampling, ShardTask):
    """One shard of a round's trajectories."""

    stage = "sample-shard"


class Sample(_Sampling, ShardedTask):
    """Trajectories of policy n - 1 for round n."""

    stage = "sample"

    def shard(self, number: int) -> ShardTask:
        shard: Any = self.clone(SampleShard, number=number)
        return shard  # type: ignore[no-any-return]
