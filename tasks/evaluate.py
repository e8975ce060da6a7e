"""Metrics of every policy."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import luigi

from tasks.base import StageTask
from tasks.knowledge import knowledge
from tasks.policy import policy
from tasks.questions import questions
from tasks.sample import ROLL_OUT, ROLL_OUT_FILES, roll_out_files, roll_out_needs
from tasks.sharding import DivisibleTask, ShardedTask, ShardTask


def policy_name(number: int) -> str:
    """``sft`` for policy 0, ``round-n`` for policy n."""
    return "sft" if number == 0 else f"round-{number}"


class _EvaluatingPolicy(DivisibleTask):
    version = 2
    entry = "pipeline.stages.evaluate:run"
    reads = (
        "evaluation.temperature",
        "evaluation.split",
        "evaluation.shards",
        "sampling.top_p",
        "sampling.max_steps",
        "sampling.max_segment_tokens",
        "sampling.max_total_tokens",
        "sampling.max_context_tokens",
        "sampling.in_flight",
        "sampling.batch",
        *ROLL_OUT,
    )
    number = luigi.IntParameter(description="policy: 0 is SFT, n the policy after round n")

    @property
    def own_shards(self) -> int | None:
        return self.settings.evaluation.shards

    @property
    def round_number(self) -> int | None:
        return int(self.number)

    def upstream(self) -> dict[str, StageTask]:
        return {
            **knowledge(self),
            "questions": questions(self, self.settings.evaluation.split),
            "policy": policy(self, self.number),
        }

    @property
    def input_files(self) -> Mapping[str, tuple[str, ...]]:
        return ROLL_OUT_FILES

    def needed(self) -> dict[str, StageTask]:
        return roll_out_needs(self)

    def files(self) -> dict[str, Path | str]:
        return roll_out_files(self)


class EvaluatePolicyShard(_EvaluatingPolicy, ShardTask):
    """Greedy roll-outs of one policy over a share of the test questions."""

    stage = "evaluate-policy-shard"


class EvaluatePolicy(_EvaluatingPolicy, ShardedTask):
    """Greedy roll-outs of one policy over the test questions, and their metrics."""

    stage = "evaluate-policy"
    merge_entry = "pipeline.stages.evaluate:merge_shards"
    shard_kind = EvaluatePolicyShard


class Evaluate(StageTask):
    """Metrics, intervals and comparisons over all policies."""

    stage = "evaluate"
    version = 2
    entry = "pipeline.stages.evaluate:merge"
    reads = ("evaluation.bootstrap", "seed")

    def upstream(self) -> dict[str, StageTask]:
        from tasks.judge import JudgePolicy  # that module imports this one

        numbers = range(self.settings.rounds + 1)
        needs = {policy_name(n): self.clone(EvaluatePolicy, number=n) for n in numbers}
        if self.settings.evaluation_judges is None:
            return needs
        judged = {f"judge-{policy_name(n)}": self.clone(JudgePolicy, number=n) for n in numbers}
        return {**needs, **judged}
