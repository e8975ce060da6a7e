"""The wall time of stages that run side by side: a list schedule over the dependency graph.

As in Luigi's scheduler, a free worker takes the first stage, in running order, whose inputs are done.
"""

from __future__ import annotations

import heapq
from collections.abc import Mapping, Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Job:
    """A stage that runs for ``seconds`` after the stages in ``needs``."""

    label: str
    seconds: float
    needs: tuple[str, ...] = ()


def start_times(jobs: Sequence[Job], workers: int) -> Mapping[str, float]:
    """The second at which each job starts, by label.

    ``jobs`` are in running order: a job comes after those that it needs. Needed labels that are no jobs
    count as done.
    """
    remaining = {job.label: job for job in jobs}
    waiting = list(jobs)
    starts: dict[str, float] = {}
    running: list[tuple[float, str]] = []  # (second of the end, label)
    now = 0.0
    while waiting or running:
        for job in list(waiting):
            if len(running) == workers:
                break
            if not any(name in remaining for name in job.needs):
                starts[job.label] = now
                heapq.heappush(running, (now + job.seconds, job.label))
                waiting.remove(job)
        now, label = heapq.heappop(running)
        del remaining[label]
        while running and running[0][0] == now:
            del remaining[heapq.heappop(running)[1]]
    return starts


def makespan(jobs: Sequence[Job], workers: int) -> float:
    """Seconds from the start of the first job to the end of the last."""
    starts = start_times(jobs, workers)
    return max((starts[job.label] + job.seconds for job in jobs), default=0.0)
