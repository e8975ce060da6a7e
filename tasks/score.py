"""Tasks of stage ``score``: the rewards of a round."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path

from tasks.base import TRAJECTORIES, RoundTask, StageTask
from tasks.fingerprint import model_identity
from tasks.index import knowledge
from tasks.judge import Judge
from tasks.opened import Opened, Work, reranker
from tasks.planning.clock import Clock
from tasks.planning.sizes import TRAJECTORY_BYTES
from tasks.policy import policy, policy_files
from tasks.sample import ROLL_OUT, Sample, roll_out_files, roll_out_models, sampled
from tasks.sharding import DivisibleTask


class Score(RoundTask, DivisibleTask):
    """Trajectories of round n with every reward term."""

    stage = "score"
    help = "trajectories of a round with rewards"
    shards_block = "sampling"
    version = 2
    shard_version = 5
    entry = "pipeline.stages.score:run"
    merge_entry = "pipeline.stages.score:merge"
    reads = ("rewards.kind", "sampling.shards")
    reads_at_times = (
        "rewards",
        "retrieval.reranker",
        "index.embedder",
        *("sampling", *ROLL_OUT),
    )

    @property
    def input_files(self) -> Mapping[str, tuple[str, ...]]:
        files: dict[str, tuple[str, ...]] = {"sample": TRAJECTORIES, "judge": ("verdicts.parquet",)}
        if "policy" in self.inputs:
            files["policy"] = policy_files(self.inputs["policy"])
        return files

    def upstream(self) -> dict[str, StageTask]:
        needs: dict[str, StageTask] = {"sample": self.clone(Sample)}
        if self.settings.rewards.judged:
            needs["judge"] = self.clone(Judge)
        if self.settings.method.scoring_samples:
            # Scoring continues trajectories (policy, retrieval) and reads their entities (graph).
            needs |= {**knowledge(self), "policy": policy(self, self.round - 1)}
        return needs

    def reading(self) -> tuple[str, ...]:
        """Only the part of the block ``rewards`` that the method uses."""
        rewards = self.settings.rewards
        names = [*self.reads, f"rewards.{rewards.kind.replace('-', '_')}"]
        if self.settings.method.similarity_rewards:
            names.append("retrieval.reranker" if rewards.reranker is None else "rewards.reranker")
            names.append("index.embedder")
        if self.settings.method.scoring_samples:
            names += ["sampling", *ROLL_OUT]
        return tuple(names)

    def files(self) -> dict[str, Path | str]:
        if self.settings.method.scoring_samples:
            return roll_out_files(self)
        if not self.settings.method.similarity_rewards:
            return {}
        reranker = self.settings.rewards.reranker or self.settings.retrieval.reranker
        return {"reranker": model_identity(reranker.model or self.settings.index.embedder.model)}

    def opens(self) -> Iterator[Opened]:
        """The models that continue trajectories, or the reranker for evidence and knowledge."""
        settings = self.settings
        if settings.method.scoring_samples:
            yield from roll_out_models(self)
        elif settings.method.similarity_rewards:
            own = settings.rewards.reranker
            block = "retrieval" if own is None else "rewards"
            yield reranker(settings, own or settings.retrieval.reranker, f"{block}.reranker")

    def work(self, clock: Clock) -> Work:
        settings, a, rows = self.settings, clock.rates, sampled(self, clock)
        if settings.method.scoring_samples:
            continued = a.continued_states * settings.rewards.prograph.continuations
            # From the middle of a trajectory on average.
            each = continued / 2 * clock.trajectory(self.opens())
        else:
            each = Work(clock.reranking(self.opens(), a.rewarded_pairs))
        return rows * (each + Work(disk=TRAJECTORY_BYTES))
