"""The report."""

from __future__ import annotations

from functools import cached_property
from typing import TYPE_CHECKING, Any

from pipeline.config.writing import differing_settings
from pipeline.engine.stage import PUBLISHED, LightTask, StageTask
from tasks.coverage import Coverage
from tasks.evaluate import Evaluate
from tasks.evaluate_policy import EvaluatePolicy
from tasks.index import searched
from tasks.judge import Judge, JudgePolicy
from tasks.pair import Pair
from tasks.policy import policy
from tasks.questions import SPLITS, questions
from tasks.sample import Sample
from tasks.score import Score
from tasks.sft import Sft
from tasks.sft_data import SftData
from tasks.train import Train

if TYPE_CHECKING:
    from pipeline.engine.context import StageContext


class Report(LightTask):
    """The HTML page of a run, and its numbers as JSON."""

    stage = "report"
    help = "the HTML report"
    version = 13  # both averages
    reads = ("name", "rounds", "until", "evaluation.average")
    publishes = PUBLISHED
    reusable = False  # it describes the outputs that it reads, their settings and seconds included

    def facts(self) -> dict[str, Any]:
        return {"differing": differing_settings(self.config, tuple(self.overrides), self.data)}

    @cached_property
    def inputs(self) -> dict[str, StageTask]:
        needs: dict[str, StageTask] = {
            **searched(self.clone(EvaluatePolicy)),  # evaluation may search where training does not
            **searched(self),
        }
        if "corpus" in needs:
            needs["coverage"] = self.clone(Coverage)
        first = policy(self, 0)
        cold_start = isinstance(first, Sft)
        for split in SPLITS:
            if split != "sft" or cold_start:
                needs[f"questions-{split}"] = questions(self, split)
        if cold_start:
            needs["sft-data"] = self.clone(SftData)
        needs[first.stage] = first
        whole = self.settings.until == "report"
        if whole:
            needs.update(self._evaluation(0))
        for number in range(1, self.settings.rounds + 1):
            sample = needs[f"sample-{number}"] = self.clone(Sample, round=number)
            sampled = questions(sample, "sampling")
            if sampled.round_number is not None:  # the round has its own questions
                needs[f"{sampled.stage}-{number}"] = sampled
            if self.settings.judged:
                needs[f"judge-{number}"] = self.clone(Judge, round=number)
            needs[f"score-{number}"] = self.clone(Score, round=number)
            if self.settings.objective == "dpo":
                needs[f"pair-{number}"] = self.clone(Pair, round=number)
            if not whole:
                break
            needs[f"train-{number}"] = self.clone(Train, round=number)
            needs.update(self._evaluation(number))
        if whole:
            needs["evaluate"] = self.clone(Evaluate)
        return needs

    def _evaluation(self, number: int) -> dict[str, StageTask]:
        """The evaluation of a policy, which runs as soon as the policy is trained."""
        name = self.settings.policy_name(number)
        needs: dict[str, StageTask] = {
            f"evaluate-{name}": self.clone(EvaluatePolicy, number=number)
        }
        if self.settings.evaluation_judges is not None:
            needs[f"judge-{name}"] = self.clone(JudgePolicy, number=number)
        return needs


def run(context: StageContext) -> dict[str, int]:
    """Write the page and its figures; returns the number of rows and of bytes."""
    from pipeline.look.report.page import run

    return run(context)
