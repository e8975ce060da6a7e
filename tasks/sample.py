"""Trajectories."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import cached_property
from pathlib import Path

from pipeline.config import Config
from pipeline.config.policy import RejectionSampling
from tasks.base import RoundTask, StageTask
from tasks.fingerprint import base_model_files, model_identity
from tasks.index import searched
from tasks.limits import roll_out_faults
from tasks.opened import Opened, Work, policy_engine, retrieval
from tasks.planning.clock import Clock
from tasks.planning.sizes import TRAJECTORY_BYTES
from tasks.policy import GivenPolicy, policy, policy_files
from tasks.questions import QUESTIONS_READ, questions
from tasks.sharding import DivisibleTask

ROLL_OUT = (
    "retrieval",
    "prompt",
    "grammar",
    "format",
    "engine",
    "index.embedder",
    "model",
    "seed",
)


def roll_out_files(task: StageTask) -> dict[str, Path | str]:
    """The models that roll-outs read, except the policy's adapter."""
    files = base_model_files(task.settings)
    reranker = task.settings.retrieval.reranker.model
    if reranker:
        files["reranker"] = model_identity(reranker)
    return files


def roll_out_models(task: StageTask) -> Iterator[Opened]:
    """The policy, and the retriever unless a service retrieves."""
    yield policy_engine(task.settings)
    own = task.settings.retrieval != task.run_settings.retrieval
    yield from retrieval(task.settings, "evaluation.retrieval" if own else "retrieval")


def sampled(task: StageTask, clock: Clock) -> float:
    """The trajectories of a round."""
    return clock.sizes.questions["sampling"] * task.settings.sampling.samples


class RollOutTask(DivisibleTask):
    """A stage that rolls a policy out over questions."""

    def trajectories(self, clock: Clock) -> float:
        """The number of trajectories, by the sizes of the data."""
        raise NotImplementedError

    @property
    def input_files(self) -> Mapping[str, tuple[str, ...]]:
        return {**QUESTIONS_READ, "policy": policy_files(self.inputs["policy"])}

    def needed(self) -> dict[str, StageTask]:
        """The upstream tasks that a roll-out needs in this store.

        With a retrieval service the corpus, the graph and the index may be on its machine. The
        client compares their fingerprints with the fingerprints of this task.
        """
        remote = ("corpus", "graph", "index") if self.settings.retrieval.service else ()
        return {name: needed for name, needed in self.upstream().items() if name not in remote}

    def files(self) -> dict[str, Path | str]:
        return roll_out_files(self)

    def opens(self) -> Iterator[Opened]:
        return roll_out_models(self)

    def work(self, clock: Clock) -> Work:
        rows = self.trajectories(clock)
        return rows * (clock.trajectory(self.opens()) + Work(disk=TRAJECTORY_BYTES))

    def faults(self) -> Iterator[str]:
        return roll_out_faults(self.settings)


class Sample(RoundTask, RollOutTask):
    """Trajectories of policy n - 1 for round n."""

    stage = "sample"
    help = "trajectories of a round"
    version = 2
    shards_block = "sampling"
    entry = "pipeline.stages.sample:run"
    merge_entry = "pipeline.stages.sample:merge"
    reads = ("sampling", *ROLL_OUT)

    @property
    def recorded(self) -> str | None:
        """The file of trajectories that stand in for sampling."""
        return self.settings.sampling.recorded

    @property
    def runs_model(self) -> bool:
        return self.recorded is None

    @property
    def input_files(self) -> Mapping[str, tuple[str, ...]]:
        files = super().input_files
        return files if self.recorded is None else {"policy": files["policy"]}

    def upstream(self) -> dict[str, StageTask]:
        before = {"policy": policy(self, self.round - 1)}
        if self.recorded is not None:
            return before
        return {**searched(self), "questions": questions(self, "sampling"), **before}

    def files(self) -> dict[str, Path | str]:
        return super().files() if self.recorded is None else {"recorded": Path(self.recorded)}

    def opens(self) -> Iterator[Opened]:
        return super().opens() if self.recorded is None else iter(())

    def reading(self) -> tuple[str, ...]:
        return self.reads if self.recorded is None else ("sampling.recorded",)

    def faults(self) -> Iterator[str]:
        return super().faults() if self.recorded is None else iter(())

    def trajectories(self, clock: Clock) -> float:
        return sampled(self, clock)


class SftSample(RollOutTask):
    """Trajectories for the cold start by rejection sampling (``sft_data.rejection_sampling``)."""

    stage = "sft-sample"
    help = "trajectories of the base model or of a teacher, for the cold start"
    shards_block = "sampling"
    entry = "pipeline.stages.sample:run"
    merge_entry = "pipeline.stages.sample:merge"
    reads = ("sampling", *ROLL_OUT)
    reads_at_times = ("sft_data.rejection_sampling",)  # the rest of it is merged into ``sampling``

    @cached_property
    def settings(self) -> Config:
        """The run's settings, with the teacher's samples and temperature in ``sampling``."""
        settings, own = self.run_settings, self._own
        update = {"samples": own.samples, "temperature": own.temperature, "recorded": None}
        sampling = settings.sampling.model_copy(update=update)
        return settings.model_copy(update={"sampling": sampling})

    @property
    def _own(self) -> RejectionSampling:
        return self.run_settings.sft_data.rejection_sampling or RejectionSampling()

    def upstream(self) -> dict[str, StageTask]:
        return {
            **searched(self),
            "questions": questions(self, "sft"),
            "policy": self.clone(GivenPolicy, source=self._own.teacher),
        }

    def trajectories(self, clock: Clock) -> float:
        return clock.sizes.questions["sft"] * self._own.samples
