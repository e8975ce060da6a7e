"""Stages that several processes or machines can run in shards.

A stage that is divided has one task for each shard, and its own task joins their outputs. A shard
is a stage of the store like any other, with its own fingerprint, checkpoints and log. The number of
shards does not change the output of the joined stage, so it is not in the fingerprint of that
stage: its output stays complete under another number.
"""

from __future__ import annotations

from typing import Any, ClassVar

from pipeline.engine.luigi_adapter import luigi
from pipeline.engine.stage import STAGES, StageTask, whole_name
from pipeline.engine.store import SHARD


class DivisibleTask(StageTask):
    """A divisible stage: its module runs it whole (``run``), or joins its shards (``merge``).

    A shard is ``run_shard``. Without ``run_shard`` or ``merge`` in its module, ``run`` does that
    too. The task of a shard (`ShardTask`) follows from the declaration of its stage.
    """

    shards_block: ClassVar[str] = ""  # a block of settings with its own number of shards
    shard_version: ClassVar[int | None] = None  # of a shard, if it is not ``version``
    shard_kind: ClassVar[type[ShardTask]]  # the task of one shard

    def __init_subclass__(cls) -> None:
        """Declare the shard of a declared stage as well."""
        super().__init_subclass__()
        if "stage" in cls.__dict__ and not issubclass(cls, ShardTask):
            shard = {
                "__module__": cls.__module__,
                "stage": f"{cls.stage}-shard",
                "version": cls.shard_version or cls.version,
            }
            metaclass: Any = type(cls)
            cls.shard_kind = metaclass(f"{cls.__name__}Shard", (ShardTask, cls), shard)

    @property
    def runs_model(self) -> bool:
        """Whether the stage runs a model in this configuration; it is only divided if it does."""
        return True

    @property
    def shard_count(self) -> int:
        """The number of shards; 1 when the stage is not divided."""
        if not self.runs_model:
            return 1
        own = getattr(self.settings, self.shards_block).shards if self.shards_block else None
        return self.settings.shards if own is None else int(own)

    @property
    def divided(self) -> bool:
        """Whether the stage joins shards, so that its own process loads no model."""
        return self.shard_count > 1

    def shard(self, number: int) -> StageTask:
        """The task of one shard, from 0."""
        shard: StageTask = self.clone(self.shard_kind, shard_number=number)
        return shard

    def shards(self) -> dict[str, StageTask]:
        count = self.shard_count if self.divided else 0
        return {f"{SHARD}{number:03d}": self.shard(number) for number in range(count)}


class ShardTask(DivisibleTask):
    """One shard of a stage: the stage with a part of its work."""

    help = "a part of a divided stage"
    named = False
    divided = False
    shard_number = luigi.IntParameter(description="shard, from 0")

    def slice(self) -> dict[str, Any]:
        shard = {"number": self.shard_number, "of": self.shard_count}
        return {**super().slice(), "shard": shard}

    @property
    def command(self) -> tuple[str, ...]:
        """That of the stage that it is a part of."""
        return whole(self).command

    @property
    def label(self) -> str:
        return f"{super().label}-{self.shard_number:03d}"


def whole(task: StageTask) -> StageTask:
    """The divided stage of a shard; any other task itself."""
    return task.clone(STAGES[whole_name(task)]) if isinstance(task, ShardTask) else task
