"""When stages run side by side, and on which GPUs: a list schedule over the dependency graph.

Input: jobs in running order with their seconds and what they take, and what the run has. Output: the
start, the end and the devices of each job. The rule is that of Luigi's scheduler under `tasks.build`. A
free worker takes the first stage in running order whose inputs are done and whose GPUs and threads are
free. A stage that waits for GPUs or threads that only later stages hold reserves them. Devices are taken
as in `tasks.execution.leases`: those that come first in the allotment.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace


@dataclass(frozen=True)
class Job:
    """A stage that runs for ``seconds`` after the stages in ``needs``, with GPUs and CPU threads."""

    label: str
    seconds: float
    needs: tuple[str, ...] = ()
    gpus: int = 0
    threads: int = 0


@dataclass(frozen=True)
class Room:
    """What the jobs share: workers, GPUs, and CPU threads. None: not counted."""

    workers: int
    gpus: int | None = None
    threads: int | None = None

    def holds(self, jobs: Sequence[Job]) -> bool:
        """Whether jobs fit side by side, apart from the number of workers."""
        return (self.gpus is None or sum(job.gpus for job in jobs) <= self.gpus) and (
            self.threads is None or sum(job.threads for job in jobs) <= self.threads
        )

    def has_left(self, job: Job, before: Sequence[Job]) -> bool:
        """Whether what ``job`` takes is left beside jobs that run or wait before it.

        Jobs that wait may be counted for more GPUs than there are, which is nothing to a job without GPUs.
        """
        return replace(self, gpus=self.gpus if job.gpus else None).holds([*before, job])


@dataclass(frozen=True)
class Placed:
    """A job with the second of its start and the numbers of its devices in the allotment."""

    job: Job
    start: float
    devices: tuple[int, ...] = ()

    @property
    def end(self) -> float:
        return self.start + self.job.seconds


def schedule(jobs: Sequence[Job], room: Room) -> list[Placed]:
    """Place jobs in the order in which they start.

    ``jobs`` are in running order: a job comes after those that it needs. Needed labels that are no jobs
    count as done. Raises ValueError for a job that does not fit alone.
    """
    for job in jobs:
        if not room.holds([job]):
            raise ValueError(
                f"{job.label} takes {job.gpus} GPUs and {job.threads} threads; there are {room.gpus} and "
                f"{room.threads}"
            )
    unfinished = {job.label for job in jobs}
    waiting, running, placed = list(jobs), list[Placed](), list[Placed]()
    order = {job.label: place for place, job in enumerate(jobs)}
    now = 0.0
    while waiting or running:
        while (chosen := _next(waiting, running, unfinished, order, room)) is not None:
            taken = {device for other in running for device in other.devices}
            free = [device for device in range(room.gpus or 0) if device not in taken]
            running.append(Placed(chosen, now, tuple(free[: chosen.gpus])))
            placed.append(running[-1])
            waiting.remove(chosen)
        now = min(other.end for other in running)
        unfinished -= {other.job.label for other in running if other.end == now}
        running = [other for other in running if other.end > now]
    return placed


def _next(
    waiting: Sequence[Job],
    running: Sequence[Placed],
    unfinished: set[str],
    order: Mapping[str, int],
    room: Room,
) -> Job | None:
    """The job that a free worker takes now, or None."""
    if len(running) == room.workers:
        return None
    used = [other.job for other in running]
    ready = [job for job in waiting if not any(name in unfinished for name in job.needs)]
    before: list[Job] = []  # jobs of higher priority that run, or are to run next
    workers = room.workers
    for job in sorted([*used, *ready], key=lambda job: order[job.label]):
        if job in used:
            before.append(job)
            workers -= 1
        elif room.has_left(job, before):
            if room.holds([*used, job]):
                return job
            if workers > 0:  # the job waits, and its resources are reserved
                before.append(job)
                workers -= 1
    return None


def start_times(jobs: Sequence[Job], room: Room) -> Mapping[str, float]:
    """The second at which each job starts, by label."""
    return {placed.job.label: placed.start for placed in schedule(jobs, room)}


def makespan(placed: Sequence[Placed]) -> float:
    """Seconds from the start of the first job to the end of the last."""
    return max((one.end for one in placed), default=0.0)


def busy_share(placed: Sequence[Placed], gpus: int) -> float:
    """The share of the GPUs' time from the first start to the last end in which a stage has them."""
    whole = gpus * makespan(placed)
    used = sum(len(one.devices) * one.job.seconds for one in placed)
    return used / whole if whole else 0.0
