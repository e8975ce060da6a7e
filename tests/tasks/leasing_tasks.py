"""Tasks of the stage functions in `leasing_stages`, which ask for GPUs and do not use them."""

import json
from functools import cached_property
from pathlib import Path

import luigi

from pipeline.engine.opened import policy_engine
from pipeline.engine.stage import StageTask
from tests.tasks.counting_tasks import Counting


class Samples(Counting):
    """One of several stages that ask for the GPUs of the policy's engine."""

    stage = "samples"
    entry = "leasing_stages:shows"
    reads = ("engine", "name")
    number = luigi.IntParameter()

    def opens(self):
        yield policy_engine(self.settings)

    def slice(self):
        return {**super().slice(), "number": self.number}

    @property
    def label(self) -> str:
        return f"{self.stage}-{self.number}"


class Pairs(Counting):
    """Asks for no GPU, and follows eight stages that do."""

    stage = "pairs"
    entry = "leasing_stages:shows"
    reads = ("name",)

    @cached_property
    def inputs(self):
        return {str(number): self.clone(Samples, number=number) for number in range(8)}


class Evaluates(Counting):
    """Asks for the GPUs of the policy's engine, and does not end."""

    stage = "evaluates"
    entry = "leasing_stages:stays"
    reads = ("name",)

    def opens(self):
        yield policy_engine(self.settings)


def given(task: StageTask) -> dict:
    """What the process of a complete stage was given."""
    return dict(json.loads((Path(task.directory) / "given.json").read_text()))
