"""Metrics of every policy."""

from __future__ import annotations

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

    def upstream(self) -> dict[str, StageTask]:
        last = self.settings.rounds
        names = {number: self.settings.policy_name(number) for number in range(last + 1)}
        needs: dict[str, StageTask] = {
            name: self.clone(EvaluatePolicy, number=number) for number, name in names.items()
        }
        if self.settings.evaluation.final_split is not None:
            final = self.clone(EvaluatePolicy, number=last, final=True)
            needs[f"final-{names[last]}"] = final
        if self.settings.evaluation_judges is not None:
            for number, name in names.items():
                needs[f"judge-{name}"] = self.clone(JudgePolicy, number=number)
        return needs
