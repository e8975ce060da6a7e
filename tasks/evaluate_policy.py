"""Trajectories of one policy over the test questions."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cached_property

import luigi

from pipeline.config import Config
from tasks.base import StageTask
from tasks.index import searched
from tasks.planning.clock import Clock
from tasks.policy import policy
from tasks.questions import questions
from tasks.sample import ROLL_OUT, RollOutTask


class OfPolicy(StageTask):
    """A stage of policy ``number`` of the run."""

    number = luigi.IntParameter(
        default=0, description="policy: 0 is the first, n the one that round n trained"
    )

    @cached_property
    def settings(self) -> Config:
        return self.run_settings.for_evaluation()

    @property
    def round_number(self) -> int | None:
        return int(self.number)


class EvaluatePolicy(OfPolicy, RollOutTask):
    """Greedy trajectories of one policy over the test questions, and their metrics."""

    stage = "evaluate-policy"
    help = "trajectories and metrics of one policy"
    version = 3
    entry = "pipeline.stages.evaluate:run"
    merge_entry = "pipeline.stages.evaluate:merge_shards"
    reads = (
        "evaluation.temperature",
        "evaluation.split",
        "sampling.top_p",
        "sampling.max_steps",
        "sampling.max_segment_tokens",
        "sampling.max_total_tokens",
        "sampling.max_context_tokens",
        "sampling.malformed_calls",
        "sampling.in_flight",
        "sampling.batch",
        *ROLL_OUT,
    )
    # They are merged into the settings above (`settings`).
    reads_at_times = ("evaluation.retrieval", "evaluation.sampling", "evaluation.final_split")
    final = luigi.BoolParameter(default=False, description="on evaluation.final_split")

    @cached_property
    def settings(self) -> Config:
        """The settings of evaluation, with ``final_split`` as the split of a final evaluation."""
        settings = super().settings
        own = settings.evaluation
        split = own.final_split if self.final else own.split
        update = {"split": split, "final_split": None}
        return settings.model_copy(update={"evaluation": own.model_copy(update=update)})

    @property
    def round_number(self) -> int | None:
        return None if self.final else super().round_number

    @property
    def made_by(self) -> str | None:
        return "evaluate" if self.final else None

    @property
    def variant(self) -> str | None:
        return f"{self.number}-{self.settings.evaluation.split}" if self.final else super().variant

    def upstream(self) -> dict[str, StageTask]:
        return {
            **searched(self),
            "questions": questions(self, self.settings.evaluation.split),
            "policy": policy(self, int(self.number)),
        }

    def findings(self) -> Iterator[str]:
        """EM with its interval, and the gain over the policy before if that is evaluated."""
        from pipeline.evaluation.compare import interval_text
        from pipeline.evaluation.policy_names import policy_in_text
        from pipeline.stages.evaluate import average

        own = average(self.directory, self.settings.seed)
        interval = interval_text(own["ci"]["em"], scale=100)
        yield f"EM {100 * own['em']:.1f}" + (interval and f" (95 % interval {interval})")
        if self.number and not self.final:
            before: StageTask = self.clone(EvaluatePolicy, number=self.number - 1)
            if before.complete():
                gain = own["em"] - average(before.directory, self.settings.seed)["em"]
                name = policy_in_text(self.run_settings.policy_name(self.number - 1))
                yield f"{100 * gain:+.1f} EM over {name}"

    def trajectories(self, clock: Clock) -> float:
        return clock.sizes.questions[self.settings.evaluation.split]
