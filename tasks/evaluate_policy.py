"""Roll-outs of one policy over the test questions."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cached_property

import luigi

from pipeline.config import Config
from pipeline.config.evaluation import given_name
from tasks.base import StageTask
from tasks.index import searched
from tasks.planning.clock import Clock
from tasks.policy import GivenPolicy, evaluate_command, file_name, policy
from tasks.questions import questions
from tasks.sample import ROLL_OUT, RollOutTask


class OfPolicy(StageTask):
    """A stage of one policy: policy ``number`` of the run, or one of ``evaluation.policies``."""

    number = luigi.IntParameter(
        default=0, description="policy: 0 is the first, n the policy of round n"
    )
    given = luigi.OptionalParameter(
        default=None, description="base, or the directory of an adapter"
    )

    @cached_property
    def settings(self) -> Config:
        return self.run_settings.for_evaluation()

    @property
    def by_number(self) -> bool:
        """Whether the stage is the one that ``--round`` names."""
        return self.given is None

    @property
    def round_number(self) -> int | None:
        return int(self.number) if self.by_number else None

    @property
    def variant(self) -> str | None:
        return super().variant if self.given is None else file_name(given_name(self.given))

    @property
    def can_be_forced(self) -> bool:
        return self.by_number

    def run_command(self, *more: str) -> str:
        return super().run_command(*more) if self.by_number else evaluate_command(self, *more)

    def policy(self) -> StageTask:
        """The task that makes the policy."""
        if self.given is None:
            return policy(self, int(self.number))
        made: StageTask = self.clone(GivenPolicy, source=self.given)
        return made


class EvaluatePolicy(OfPolicy, RollOutTask):
    """Greedy roll-outs of one policy over the test questions, and their metrics."""

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
    def by_number(self) -> bool:
        return super().by_number and not self.final

    @property
    def variant(self) -> str | None:
        return f"{self.number}-{self.settings.evaluation.split}" if self.final else super().variant

    def upstream(self) -> dict[str, StageTask]:
        return {
            **searched(self),
            "questions": questions(self, self.settings.evaluation.split),
            "policy": self.policy(),
        }

    def findings(self) -> Iterator[str]:
        """EM with its interval, and the gain over the policy before if that is evaluated."""
        from pipeline.stages.evaluate import average

        own = average(self.directory, self.settings.seed)
        low, high = own["ci"]["em"] or (own["em"], own["em"])
        yield f"EM {100 * own['em']:.1f} (95 % interval {100 * low:.1f} to {100 * high:.1f})"
        if self.by_number and self.number:
            before: StageTask = self.clone(EvaluatePolicy, number=self.number - 1)
            if before.complete():
                gain = own["em"] - average(before.directory, self.settings.seed)["em"]
                name = self.run_settings.policy_name(self.number - 1)
                yield f"{100 * gain:+.1f} EM over {name}"

    def trajectories(self, clock: Clock) -> float:
        return clock.sizes.questions[self.settings.evaluation.split]
