"""The stage ``evaluate``: metrics, intervals and comparisons over all policies of a run.

Output: the files of `pipeline.evaluation.measured.merge_policies`.
"""

from __future__ import annotations

from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

from pipeline.engine.stage import LightTask, StageTask
from tasks.evaluate_policy import EvaluatePolicy
from tasks.judge import JudgePolicy

if TYPE_CHECKING:
    from pipeline.engine.context import StageContext


class Evaluate(LightTask):
    """Metrics, intervals and comparisons over all policies."""

    stage = "evaluate"
    help = "metrics of all policies"
    version = 7  # both averages
    reads = ("seed",)

    @cached_property
    def inputs(self) -> dict[str, StageTask]:
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


_JUDGED, _FINAL = "judge-", "final-"


def run(context: StageContext) -> dict[str, int]:
    """Merge the evaluations of all policies.

    ``inputs`` maps "sft", "round-1", ... to evaluations, with a judge "judge-sft", "judge-round-1",
    ... to the verdicts on their steps, and "final-round-3" to the evaluation of the last policy on
    another split, whose rows come last. Raises StoreError when the policies were evaluated on
    different questions or splits.
    """
    from pipeline.evaluation.measured import merge_policies
    from pipeline.evaluation.policy_names import of_run

    inputs, policies = context.inputs, of_run(context.inputs)

    def of(kind: str) -> dict[str, Path]:
        return {name: inputs[kind + name] for name in policies if kind + name in inputs}

    return merge_policies(
        of(""),
        context.output,
        seed=context.seed,
        progress=context.progress,
        judged=of(_JUDGED),
        final=of(_FINAL),
    )
