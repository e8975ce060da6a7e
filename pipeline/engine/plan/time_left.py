"""How much of a run is done, and how long the rest takes.

Input: the stages of a run, with the seconds that they took. Output: a share and seconds, or None
while they are unknown. A stage is expected to take as long as the last finished stage of its kind:
in this run, or in an earlier one of the same store. For a kind that never ran there, a guess stands
in, multiplied by measured over guessed seconds of the finished stages: the seconds of ``steep
plan``, and for the tiny reader those of the embedded run on another machine.
"""

from __future__ import annotations

import math
import time
import tomllib
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import fmean
from typing import Any

from pipeline.core.gpus import machine_gpus
from pipeline.core.model_files import find_model
from pipeline.core.shipped import CONFIGURATIONS, TINY_READER
from pipeline.engine.plan.clock import Clock
from pipeline.engine.plan.sizes import sizes_of
from pipeline.engine.progress import duration
from pipeline.engine.shards import ShardTask
from pipeline.engine.stage import Outputs, StageTask, walk_configured, whole_name
from pipeline.engine.store import manifest_of

_FIRST = 0.05  # share of the work of a command before its pace is known
# Seconds of the stages of configs/embedded.yaml, and the share of them that would not grow with the
# work (assumed).
EMBEDDED: Mapping[str, float] = tomllib.loads(
    Path(__file__).with_suffix(".toml").read_text(encoding="utf-8")
)
_FIXED = 0.5


@dataclass(frozen=True)
class Timed:
    """A stage: its kind, and its seconds as guessed, as measured, and until now.

    ``part`` is its part of the work of its kind: a shard has one of many, and joining shards none.
    ``here`` says that this command ran it.
    """

    kind: str
    guess: float | None = None
    took: float | None = None
    so_far: float = 0.0
    part: float = 1.0
    here: bool = False


def time_left(
    stages: Sequence[Timed], before: Mapping[str, float], elapsed: float
) -> tuple[float, float] | None:
    """The share of the run that is done, and the seconds until its end.

    ``before`` has the seconds of kinds that ran in this store earlier, ``elapsed`` the seconds of
    this command: stages that run side by side make it shorter than the sum of theirs.
    """
    finished = [stage for stage in stages if stage.took and stage.part]
    known = dict(before) | {stage.kind: (stage.took or 0.0) / stage.part for stage in finished}
    guessed = [(stage.took or 0.0, stage.guess) for stage in finished if stage.guess]
    scale = sum(took for took, _ in guessed) / sum(guess for _, guess in guessed) if guessed else 1
    done = left = here = 0.0
    for stage in stages:
        if stage.took is not None:
            done += stage.took
            here += stage.took * stage.here
            continue
        if stage.kind in known:
            expected = known[stage.kind] * stage.part
        elif stage.guess is not None:
            expected = stage.guess * stage.part * scale
        else:
            return None
        so_far = min(stage.so_far, expected)
        done, here, left = done + so_far, here + so_far, left + expected - so_far
    if here < _FIRST * (here + left) or not left:
        return None
    return done / (done + left), left * elapsed / here


class RunTime:
    """How much of a run is done, in percent, and a text on the rest; None while it is unknown."""

    def __init__(
        self, tasks: Iterable[StageTask], clock: Callable[[], float] = time.monotonic
    ) -> None:
        """``tasks`` are in running order, complete and not; ``clock`` gives seconds."""
        self._tasks, self._clock, self._began = list(tasks), clock, clock()
        self._before: dict[str, float] = {}
        self._so_far: dict[str, float] = {}
        self.stages, outputs = list[Timed](), Outputs()
        for task in self._tasks:
            stage = Timed(whole_name(task), part=_part(task))
            if outputs.complete(task):
                took = _seconds(manifest_of(outputs.directory(task)) or {})
                stage = replace(stage, took=took, part=1.0)
            elif stage.kind not in self._before and (made := task.store.newest(stage.kind)):
                self._before[stage.kind] = _seconds(made[0][1])
            self.stages.append(stage)
        known = {stage.kind for stage in self.stages if stage.took and stage.part} | {*self._before}
        if any(stage.took is None and stage.kind not in known for stage in self.stages):
            guesses = _guesses(self._tasks[-1])
            self.stages = [replace(one, guess=guesses.get(one.kind)) for one in self.stages]

    def __call__(self, so_far: Mapping[str, float]) -> tuple[int, str] | None:
        """``so_far`` has the seconds of the running stages by label."""
        self._so_far |= so_far  # a stage stops running a moment before its task ends
        now = [
            replace(stage, took=task.attempt.seconds, here=True)
            if stage.took is None and task.attempt.seconds is not None
            else replace(stage, so_far=self._so_far.get(task.label, 0.0))
            for task, stage in zip(self._tasks, self.stages, strict=True)
        ]
        found = time_left(now, self._before, self._clock() - self._began)
        return found and (math.floor(100 * found[0]), f"about {duration(found[1])} left")


def planned_work(task: StageTask) -> dict[str, float]:
    """The mean seconds of the stages of each kind, as ``steep plan`` computes them."""
    sizes, found = sizes_of(task.run_settings), dict[str, list[float]]()
    clock = Clock(sizes, gpus=bool(machine_gpus()))
    for one in walk_configured(task):
        found.setdefault(one.stage, []).append(one.work(clock).seconds)
    return {kind: fmean(each) for kind, each in found.items()}


def _guesses(task: StageTask) -> dict[str, float]:
    """Guessed seconds of a stage of each kind."""
    work = planned_work(task)
    base = Path(find_model(task.run_settings.model.base))
    if machine_gpus() or base.resolve() != TINY_READER.resolve():
        return work
    embedded = str(CONFIGURATIONS / "embedded.yaml")
    there = planned_work(task.clone(config=embedded, overrides=(), data=None))
    for kind, seconds in EMBEDDED.items():
        of, amount = there.get(kind), work.get(kind)
        more = amount / of if amount and of else 1.0
        work[kind] = seconds * (_FIXED + (1 - _FIXED) * more)
    return work


def _part(task: StageTask) -> float:
    """The part of a task in the work of its kind."""
    if isinstance(task, ShardTask):
        return 1 / task.shard_count
    return 0.0 if task.shards() else 1.0


def _seconds(manifest: Mapping[str, Any]) -> float:
    """The seconds of a finished stage, with those of its shards."""
    costs = [manifest, *manifest.get("shards", {}).values()]
    return sum(cost.get("wall_seconds") or 0.0 for cost in costs)
