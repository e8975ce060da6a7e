"""The stage ``explore``: policy 0 searches for passages that questions can reach.

A run has this stage if ``graph.scope`` is ``candidates``. It runs as ``evaluate-policy`` does.
"""

from __future__ import annotations

from functools import cached_property

from pipeline.engine.luigi_adapter import luigi
from pipeline.engine.plan.clock import Clock
from pipeline.engine.stage import StageTask
from tasks.evaluate_any import EvaluateAny
from tasks.evaluate_policy import merge as merge
from tasks.evaluate_policy import run as run
from tasks.index import knowledge
from tasks.policy import policy
from tasks.questions import questions
from tasks.sample import RollOutTask


class Explore(RollOutTask):
    """Policy 0 answers the questions of a split as in an evaluation; it searches for passages."""

    stage = "explore"
    help = "searches of policy 0, to choose passages with triplets"
    named = False
    command = ("run", "evaluate")
    reads = EvaluateAny.reads
    split = luigi.Parameter(description="sampling, validation or test")

    @property
    def label(self) -> str:
        return f"{self.stage}-{self.split}"

    @cached_property
    def inputs(self) -> dict[str, StageTask]:
        return {
            **knowledge(self, explored=False),
            "questions": questions(self, self.split),
            "policy": policy(self, 0),
        }

    def trajectories(self, clock: Clock) -> float:
        return clock.sizes.questions[self.split]
