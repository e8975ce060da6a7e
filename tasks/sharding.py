"""Stages that several processes or machines can run in shards.

A stage that is divided has one task for each shard, and its own task joins their outputs. A shard
is a stage of the store like any other, with its own fingerprint, checkpoints and log. The number of
shards does not change the output of the joined stage, so it is not in the fingerprint of that
stage: its output stays complete under another number.
"""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Iterator
from dataclasses import replace
from typing import Any, ClassVar

import luigi

from pipeline.run.store import Store, holds_checkpoints
from tasks.base import StageTask

_MOST = 64  # shards; larger numbers are not tried, because every fingerprint takes 0.1 ms


class DivisibleTask(StageTask):
    """Base of a divisible stage and of its shards."""

    @property
    def own_shards(self) -> int | None:
        """The number of shards in the stage's block of settings; None: as the run says."""
        return None

    @property
    def runs_model(self) -> bool:
        """Whether the stage runs a model in this configuration; it is only divided if it does."""
        return True

    @property
    def shard_count(self) -> int:
        """The number of shards; 1 when the stage is not divided."""
        if not self.runs_model:
            return 1
        return self.settings.shards if self.own_shards is None else self.own_shards


class ShardedTask(DivisibleTask):
    """A divisible stage: runs ``entry`` whole, or joins its shards with ``merge_entry``."""

    merge_entry: ClassVar[str]  # module:function that joins the outputs of the shards
    shard_kind: ClassVar[type[ShardTask]]  # the task of one shard

    def shard(self, number: int) -> ShardTask:
        """The task of one shard, from 0."""
        shard: Any = self.clone(self.shard_kind, shard_number=number)
        return shard  # type: ignore[no-any-return]

    @property
    def divided(self) -> bool:
        """Whether the stage joins shards, so that its own process loads no model."""
        return self.shard_count > 1

    def shards(self) -> dict[str, StageTask]:
        """The tasks of the shards; none when the stage is not divided."""
        count = self.shard_count if self.divided else 0
        return {f"shard-{number:03d}": self.shard(number) for number in range(count)}

    def requires(self) -> dict[str, StageTask]:
        """Adds the shards, unless the stage is complete: its output does not depend on them."""
        return self.needed() if self.complete() else {**self.needed(), **self.shards()}

    def start(self) -> None:
        self.execute(self.merge_entry if self.divided else self.entry, self.input_directories())

    def discard_shards(self) -> None:
        """Make all shards incomplete, so that they run again.

        Raises StageBusy when another process runs one of them.
        """
        for task in self.shards().values():
            with self.store.locked(task.stage, task.key.fingerprint, self.lock_seconds):
                self.store.discard(task.key)


class ShardTask(DivisibleTask):
    """One shard of a `ShardedTask`."""

    help = "a part of a divided stage"
    named = False
    shard_number = luigi.IntParameter(description="shard, from 0")

    def slice(self) -> dict[str, object]:
        shard = {"number": self.shard_number, "of": self.shard_count}
        return {**super().slice(), "shard": shard}

    @property
    def whole(self) -> str:
        return self.stage.removesuffix("-shard")

    @property
    def label(self) -> str:
        return f"{super().label}-{self.shard_number:03d}"

    @property
    def remake_command(self) -> str:
        """Remove the shard's output and run the whole stage: no command names a shard."""
        again = ["steep", "run", self.whole]
        if self.round_number is not None:
            again += ["--round", str(self.round_number)]
        again += self.options
        return f"{shlex.join(['rm', '-r', str(self.directory)])} && {shlex.join(again)}"

    def start(self) -> None:
        self.execute(self.entry, self.input_directories(), self.shard_number, self.shard_count)


def shards_of(task: StageTask) -> dict[str, StageTask]:
    """The shards that the stage of ``task`` is divided into; none when it is not divided."""
    return task.shards() if isinstance(task, ShardedTask) else {}


def unused_work(tasks: Iterable[StageTask]) -> Iterator[str]:
    """A sentence for each incomplete stage that would repeat work of another division."""
    for task in tasks:
        if not isinstance(task, ShardedTask) or task.complete():
            continue
        now = task.shard_count
        for count, worked in sorted(_divisions(task).items()):
            had = "the undivided stage" if count == 1 else f"{worked} of {count} shards"
            asked = "undivided" if now == 1 else f"in {now} shards"
            yield (
                f"{task.label}: checkpoints or outputs of {had} are there, and it runs {asked} "
                f"now, which makes their work again; set its number of shards to {count} to "
                "continue from them"
            )


def _divisions(task: ShardedTask) -> dict[int, int]:
    """The other numbers of shards with work in the store, and how many shards have some."""
    found: dict[int, int] = {}
    shards = list(task.shards().values())
    # If all shards of a divided stage are complete, its checkpoints belong to the join.
    if not all(shard.complete() for shard in shards) and holds_checkpoints(
        task.store.checkpoint_dir(task.key)
    ):
        found[1] = 1
    worked = _fingerprints(task.store, task.shard_kind.stage)
    worked -= {shard.key.fingerprint for shard in shards}
    key = task.shard(0).key
    for count in range(2, _MOST + 1):
        if not worked:
            break
        own = {
            replace(
                key, settings={**key.settings, "shard": {"number": number, "of": count}}
            ).fingerprint
            for number in range(count)
        }
        if own & worked:
            found[count] = len(own & worked)
            worked -= own
    return found


def _fingerprints(store: Store, stage: str) -> set[str]:
    """The fingerprints of a stage with an output or with checkpoints."""
    folder = store.root / stage
    completed = {path.name for path in store.completed(stage)}
    partial = {path.stem for path in folder.glob("*.partial") if holds_checkpoints(path)}
    return completed | partial
