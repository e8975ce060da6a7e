"""A simulated schedule of a run: when each stage would run, and on which GPUs.

Input: the task of a run, which need not have its data: only the configuration is read. Output: placed
jobs. A stage that `steep plan` has an estimate for takes that time, any other the time that
`tasks.planning.stage_time` gives.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from tasks.base import StageTask
from tasks.build import GPUS, THREADS, asked_of, check_needs, resources
from tasks.execution.leases import Capacity
from tasks.needs import shards_of
from tasks.planning.schedule import Job, Placed, Room, busy_share, makespan, schedule
from tasks.planning.stage_time import Times


@dataclass(frozen=True)
class Simulated:
    """Placed jobs, in the order in which they start; ``assumed`` has the labels of assumed times."""

    placed: tuple[Placed, ...]
    gpus: int
    workers: int
    threads: int
    assumed: frozenset[str]

    @property
    def seconds(self) -> float:
        """Wall seconds of the run."""
        return makespan(self.placed)

    @property
    def busy(self) -> float:
        """The share of the GPUs' time in which a stage has them."""
        return busy_share(self.placed, self.gpus)


def divided_walk(task: StageTask, seen: set[str] | None = None) -> Iterator[tuple[StageTask, int]]:
    """A task and everything that it needs, in running order, as if nothing were complete.

    With each comes the number of parts that its stage is divided into. Nothing but the configuration is
    read.
    """
    seen = set() if seen is None else seen
    if task.task_id in seen:
        return
    seen.add(task.task_id)
    for needed in _needed(task).values():
        yield from divided_walk(needed, seen)
    shards = shards_of(task)
    for shard in shards.values():
        seen.add(shard.task_id)
        yield shard, len(shards)
    yield task, 1


def _needed(task: StageTask) -> dict[str, StageTask]:
    """What a task or, where it is divided, each of its shards needs."""
    shards = shards_of(task)
    return next(iter(shards.values())).needed() if shards else task.needed()


def simulate(
    task: StageTask, capacity: Capacity, estimated: Mapping[str, float | None] | None = None
) -> Simulated:
    """Place the stages of a run on its GPUs.

    ``estimated`` has the seconds of the stages that would run, by label, as far as they are known; None
    is a run from an empty store. Raises ConfigError when a stage asks for more GPUs than there are.
    """
    stages = list(divided_walk(task))
    check_needs([needed for needed, _ in stages], capacity)
    jobs, assumed, times = [], set(), Times()
    for needed, parts in stages:
        if estimated is not None and needed.label not in estimated:
            continue  # complete
        taken = resources(asked_of(needed, capacity), capacity)
        seconds = None if estimated is None else estimated[needed.label]
        if seconds is None:
            assumed.add(needed.label)
            seconds = times.seconds(needed, parts, taken[THREADS])
        before = {**needed.needed(), **shards_of(needed)}
        names = tuple(other.label for other in before.values())
        jobs.append(Job(needed.label, seconds, names, taken.get(GPUS, 0), taken[THREADS]))
    room = Room(capacity.workers, capacity.at_once or None, capacity.threads)
    placed = tuple(schedule(jobs, room))
    return Simulated(
        placed, capacity.at_once, capacity.workers, capacity.threads, frozenset(assumed)
    )
