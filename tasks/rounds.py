"""Tasks of one round, and stages that run in shards."""

from __future__ import annotations

import shlex
from functools import cached_property

import luigi

from pipeline.config import Config
from tasks.base import StageTask

TRAJECTORIES = ("trajectories.parquet",)  # what other stages read of sampled or scored trajectories


class RoundTask(StageTask):
    """A stage of one round of training; rounds count from 1."""

    round = luigi.IntParameter(default=1, description="round of training, from 1")

    @cached_property
    def settings(self) -> Config:
        return self.run_settings.of_round(int(self.round))

    @property
    def round_number(self) -> int | None:
        return int(self.round)


class ShardedTask(RoundTask):
    """A stage that several processes or machines can run in shards.

    The number of shards does not change the records, so it is not in the fingerprint.
    """

    def shard(self, number: int) -> ShardTask:
        """The task of one shard, from 0."""
        raise NotImplementedError

    def shards(self) -> dict[str, StageTask]:
        """The tasks of the shards; none when the stage is not divided."""
        count = self.settings.sampling.shards
        return {f"shard-{n:03d}": self.shard(n) for n in range(count)} if count > 1 else {}

    def requires(self) -> dict[str, StageTask]:
        """The shards, unless the stage is complete: its output is the same however it was divided."""
        shards = self.shards()
        return shards if shards and not self.complete() else self.needed()

    def start(self) -> None:
        inputs = {name: str(task.directory) for name, task in self.requires().items()}
        sharded = self.settings.sampling.shards > 1
        self.execute("pipeline.stages.shards:merge" if sharded else self.entry, inputs)


class ShardTask(RoundTask):
    """One shard of a ShardedTask."""

    number = luigi.IntParameter(description="shard, from 0")

    def slice(self) -> dict[str, object]:
        shards = {"number": self.number, "of": self.settings.sampling.shards}
        return {**super().slice(), "shard": shards}

    @property
    def label(self) -> str:
        return f"{super().label}-{self.number:03d}"

    @property
    def sharded(self) -> bool:
        return True

    @property
    def remake_command(self) -> str:
        """Shards have no command of their own: without its output a shard runs again."""
        whole = self.stage.removesuffix("-shard")
        again = ["steep", "run", whole, "--round", str(self.round), *self.options]
        return f"{shlex.join(['rm', '-r', str(self.directory)])} && {shlex.join(again)}"

    def start(self) -> None:
        inputs = {name: str(task.directory) for name, task in self.requires().items()}
        self.execute(self.entry, inputs, self.number, self.settings.sampling.shards)
