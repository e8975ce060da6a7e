"""Tasks of the stage functions in `leasing_stages`, under names of stages that ask for GPUs."""

import json
from pathlib import Path

import luigi

from tasks.base import StageTask


class Samples(StageTask):
    """One of several stages that ask for the GPUs of the policy's engine."""

    stage = "sample-shard"
    entry = "leasing_stages:shows"
    reads = ("engine", "name")
    number = luigi.IntParameter()

    def slice(self):
        return {**super().slice(), "number": self.number}

    @property
    def label(self) -> str:
        return f"{self.stage}-{self.number}"


class Pairs(StageTask):
    """Asks for no GPU, and follows eight stages that do."""

    stage = "pair"
    entry = "leasing_stages:shows"
    reads = ("name",)

    def upstream(self):
        return {str(number): self.clone(Samples, number=number) for number in range(8)}


class Evaluates(StageTask):
    """Asks for the GPUs of the policy's engine, and does not end."""

    stage = "evaluate-policy"
    entry = "leasing_stages:stays"
    reads = ("name",)


class Trains(StageTask):
    """Asks for a GPU for each process of the cold start."""

    stage = "sft"
    entry = "leasing_stages:shows"
    reads = ("sft", "name")


def given(task: StageTask) -> dict:
    """What the process of a complete stage was given."""
    return dict(json.loads((Path(task.directory) / "given.json").read_text()))
