"""Verdicts of judges."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import ClassVar

from pipeline.config import Judges
from pipeline.core.errors import ConfigError
from tasks.base import TRAJECTORIES, RoundTask, StageTask
from tasks.evaluate_policy import EvaluatePolicy, OfPolicy
from tasks.fingerprint import base_model_files, model_identity
from tasks.opened import Opened, Work, judges, policy_engine
from tasks.planning.clock import Clock
from tasks.planning.sizes import ANSWER_BYTES
from tasks.policy import policy, policy_files
from tasks.sample import Sample, sampled
from tasks.sharding import DivisibleTask
from tasks.world import World


def _required(task: StageTask, judges: Judges | None) -> Judges:
    if judges is None:
        raise ConfigError(f"{task.config}: judges is missing; add the block")
    return judges


class _Judging(DivisibleTask):
    """Base of the tasks that judge a round or an evaluated policy."""

    version = 4
    entry = "pipeline.stages.judge:run"
    shard_entry = "pipeline.stages.judge:run_shard"
    merge_entry = "pipeline.stages.judge:merge"
    reads: ClassVar[tuple[str, ...]] = (
        "grammar",
        "engine",
        "model",
        "sampling.max_steps",
    )

    @property
    def input_files(self) -> Mapping[str, tuple[str, ...]]:
        return {"paths": TRAJECTORIES, "policy": policy_files(self.inputs["policy"])}

    @property
    def judges(self) -> Judges:
        """The judges; raises ConfigError when the configuration has none."""
        return _required(self, self.settings.judges)

    @property
    def judges_block(self) -> str:
        """The block of the judges."""
        return "judges"

    def reading(self) -> tuple[str, ...]:
        return (*self.reads, "judges")

    def judged(self, trajectories: StageTask, policy: StageTask) -> dict[str, StageTask]:
        """The trajectories, the policy that sampled them, and the world of an exact judge."""
        needs = {"paths": trajectories, "policy": policy}
        if self.judges.exact:
            needs["world"] = self.clone(World)
        return needs

    def files(self) -> dict[str, Path | str]:
        """The models that answer and judge, except the policy's adapter."""
        files = base_model_files(self.settings)
        for kind, judge in (("over", self.judges.over), ("under", self.judges.under)):
            if judge.model is not None:
                files[f"judge of {kind}-search"] = model_identity(judge.model)
        return files

    def opens(self) -> Iterator[Opened]:
        """The policy, whose closed-book answers are judged, and then each judge."""
        yield policy_engine(self.settings)
        yield from judges(self.judges_block, self.judges)

    def trajectories(self, clock: Clock) -> float:
        """The number of trajectories that are judged."""
        raise NotImplementedError

    def work(self, clock: Clock) -> Work:
        each = clock.judging(self.opens()) + Work(disk=ANSWER_BYTES)
        return self.trajectories(clock) * each


class Judge(_Judging, RoundTask):
    """Verdicts on the steps of round n's trajectories."""

    stage = "judge"
    help = "verdicts on the steps of a round"
    reads_at_times = ("judges",)

    def upstream(self) -> dict[str, StageTask]:
        return self.judged(self.clone(Sample), policy(self, self.round - 1))

    def trajectories(self, clock: Clock) -> float:
        return sampled(self, clock)


class JudgePolicy(OfPolicy, _Judging):
    """Verdicts on the steps of one policy's evaluation."""

    stage = "judge-policy"
    help = "verdicts on the steps of one policy's evaluation"
    reads_at_times = ("judges", "evaluation.judges")

    @property
    def judges(self) -> Judges:
        return _required(self, self.settings.evaluation_judges)

    @property
    def judges_block(self) -> str:
        return self.settings.evaluation_judges_block

    def reading(self) -> tuple[str, ...]:
        return (*self.reads, self.judges_block)

    def trajectories(self, clock: Clock) -> float:
        return clock.sizes.questions[self.settings.evaluation.split]

    def upstream(self) -> dict[str, StageTask]:
        return self.judged(self.clone(EvaluatePolicy), policy(self, int(self.number)))
