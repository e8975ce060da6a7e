"""Metrics of every policy."""

from __future__ import annotations

from pipeline.config import Config
from pipeline.config.evaluation import given_name
from tasks.base import LightTask, StageTask
from tasks.evaluate_policy import EvaluatePolicy
from tasks.judge import JudgePolicy


class Evaluate(LightTask):
    """Metrics, intervals and comparisons over all policies."""

    stage = "evaluate"
    help = "metrics of all policies"
    version = 6  # without example trajectories
    entry = "pipeline.stages.evaluate:merge"
    reads = ("seed",)
    reads_at_times = ("evaluation.policies",)  # they are inputs

    def upstream(self) -> dict[str, StageTask]:
        needs: dict[str, StageTask] = {
            name: self.clone(EvaluatePolicy, **which)
            for name, which in evaluated_policies(self.settings).items()
        }
        if self.settings.evaluation.final_split is not None:
            last = self.settings.rounds
            name = f"final-{self.settings.policy_name(last)}"
            needs[name] = self.clone(EvaluatePolicy, number=last, final=True)
        if self.settings.evaluation_judges is None:
            return needs
        judged = {
            f"judge-{name}": self.clone(JudgePolicy, **which)
            for name, which in evaluated_policies(self.settings).items()
        }
        return {**needs, **judged}


def evaluated_policies(settings: Config) -> dict[str, dict[str, str | int]]:
    """The parameters of `OfPolicy` for all policies that a run evaluates, by result name."""
    return {
        **{given_name(source): {"given": source} for source in settings.evaluation.policies},
        **{settings.policy_name(n): {"number": n} for n in range(settings.rounds + 1)},
    }
