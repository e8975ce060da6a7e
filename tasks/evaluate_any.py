"""Metrics of any policy on any questions, beside the run."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import cached_property
from pathlib import Path
from typing import Any

from pipeline.config import Config
from pipeline.config.evaluation import BASE
from pipeline.core.model_files import adapter_directory
from pipeline.engine.fingerprint import content_of
from pipeline.engine.luigi_adapter import luigi
from pipeline.engine.plan.clock import Clock
from pipeline.engine.stage import StageTask
from tasks.evaluate_policy import EvaluatePolicy
from tasks.evaluate_policy import merge as merge
from tasks.evaluate_policy import run as run
from tasks.index import searched
from tasks.policy import given_faults
from tasks.questions import QUESTIONS
from tasks.sample import RollOutTask


class EvaluateAny(RollOutTask):
    """Roll-outs of the policy in a directory over prepared questions, and their metrics.

    The policy and the questions are inputs by content, so equal policies and questions from
    different files are evaluated once.
    """

    stage = "evaluate-any"
    help = "metrics of any policy on any questions"
    named = False
    reads = (
        "evaluation.temperature",
        "evaluation.cem",
        *(name for name in EvaluatePolicy.reads if name.partition(".")[0] != "evaluation"),
    )
    policy = luigi.OptionalParameter(default=None, description="directory; none: the base model")
    questions = luigi.Parameter(description="directory with questions.parquet")
    samples = luigi.IntParameter(default=1, description="trajectories per question")
    title = luigi.Parameter(significant=False, description="the policy's name in messages")

    @cached_property
    def settings(self) -> Config:
        """The settings of evaluation, where greedy samples, which are equal, become random ones."""
        settings = self.run_settings.for_evaluation()
        if self.samples == 1:
            return settings
        sampling, own = settings.sampling, settings.evaluation
        heat = {"temperature": own.temperature or sampling.temperature}
        sampling = sampling.model_copy(update={"samples": self.samples})
        update = {"sampling": sampling, "evaluation": own.model_copy(update=heat)}
        return settings.model_copy(update=update)

    def reading(self) -> tuple[str, ...]:
        return self.reads if self.samples == 1 else (*self.reads, "sampling.samples")

    def facts(self) -> dict[str, Any]:
        facts: dict[str, Any] = {"samples": self.samples, "questions": Path(self.questions)}
        return facts if self._policy_dir is None else {**facts, "policy": self._policy_dir}

    @cached_property
    def inputs(self) -> dict[str, StageTask]:
        """The indexes; policy and questions are files."""
        return searched(self)

    @property
    def input_files(self) -> Mapping[str, tuple[str, ...]]:
        return {}

    def files(self) -> dict[str, Path | str]:
        from pipeline.training.lineage import checked_policy

        _ = self._adapter  # hashed first: a change after this is noticed
        settings = self.settings
        policy = checked_policy(self._policy_dir, settings.model.base, settings.hashes_file)
        questions = Path(self.questions) / QUESTIONS
        return {**super().files(), "policy": policy.fingerprint, "questions": questions}

    def raw_files(self) -> dict[str, str]:
        """Adds the adapter, which the fingerprint has by its tensors."""
        return {**super().raw_files(), **self._adapter}

    @cached_property
    def _adapter(self) -> dict[str, str]:
        if self._policy_dir is None:
            return {}
        adapter = adapter_directory(self._policy_dir)
        return content_of(self.settings, {str(adapter): adapter}) if adapter.is_dir() else {}

    def faults(self) -> Iterator[str]:
        """Adds why the policy cannot be used."""
        yield from super().faults()
        yield from given_faults(self.settings, self._policy_dir, "--policy")

    @property
    def _policy_dir(self) -> Path | None:
        return None if self.policy is None else Path(self.policy)

    def trajectories(self, clock: Clock) -> float:
        return 0  # a plan covers only the questions of the run

    @property
    def label(self) -> str:
        return f"evaluate-{self.title}"

    @property
    def command(self) -> tuple[str, ...]:
        policy, questions = self.policy or BASE, f"{self.questions}/{QUESTIONS}"
        words = ("evaluate", "--policy", policy, "--questions", questions)
        return words if self.samples == 1 else (*words, "--samples", str(self.samples))
