"""The plan of a run: every stage with its state and its expected work, and the totals."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from tasks.base import StageTask
from tasks.build import GPUS, THREADS, asked_of, resources
from tasks.execution.leases import Capacity
from tasks.needs import needs
from tasks.planning.amounts import driver, expected_rows, measured_amount, rows_of_whole
from tasks.planning.driver import Driver, Known
from tasks.planning.estimate import (
    Estimate,
    cost_of,
    gpu_seconds,
    scaled_amounts,
    scaled_seconds,
)
from tasks.planning.machine import here
from tasks.planning.measured import Earlier, Measured, read_measured
from tasks.planning.resources import prices
from tasks.planning.schedule import Job, Room, makespan, schedule
from tasks.planning.source import nearest


@dataclass(frozen=True)
class Plan:
    """The stages in running order, and what they share; 0 GPUs or threads are not counted."""

    stages: tuple[Estimate, ...]
    workers: int
    gpus: int = 0
    threads: int = 0

    @property
    def running(self) -> tuple[Estimate, ...]:
        """The stages that would run."""
        return tuple(stage for stage in self.stages if stage.state == "run")

    @property
    def unknown(self) -> tuple[Estimate, ...]:
        """The stages that would run for a time that nothing tells."""
        return tuple(stage for stage in self.running if stage.seconds is None)

    @property
    def wall_seconds(self) -> float:
        """Seconds of all stages, side by side as far as inputs, workers, GPUs and threads allow.

        Stages of unknown time count as 0.
        """
        jobs = [
            Job(stage.label, stage.seconds or 0.0, stage.needs, stage.gpus, stage.threads)
            for stage in self.running
        ]
        return makespan(schedule(jobs, Room(self.workers, self.gpus or None, self.threads or None)))

    def total(self, name: str) -> float:
        """The sum of an amount over the stages that would run, as far as it is known."""
        return sum(stage.amounts.get(name, 0.0) for stage in self.running)


def make_plan(
    task: StageTask, tasks: Iterable[StageTask], capacity: Capacity, *, forced: bool = False
) -> Plan:
    """The plan of ``task``; ``tasks`` are it and everything that it needs, in running order.

    ``capacity`` is what the stages share, and ``forced`` says that ``task`` runs although it is complete.
    """
    tasks = list(tasks)
    others = dict.fromkeys(needed.store.root for needed in tasks)
    earlier = Earlier.beside(task.store.root, Path(task.settings.runs_dir), others)
    amounts: dict[str, Mapping[str, float]] = {}
    machine = here()
    stages = []
    for needed in tasks:
        if needed.complete() and not (forced and needed is task):
            stage = _done(needed)
        else:
            taken = resources(asked_of(needed, capacity), capacity)
            stage = replace(
                _expected(needed, Known(amounts, earlier), machine),
                gpus=taken.get(GPUS, 0),
                threads=taken[THREADS],
            )
        amounts[needed.task_id] = stage.amounts
        stages.append(stage)
    return Plan(tuple(stages), capacity.workers, capacity.at_once, capacity.threads)


def _done(task: StageTask) -> Estimate:
    directory = task.directory
    found = read_measured(directory)
    reused = directory.name != task.key.fingerprint
    return Estimate(
        label=task.label,
        state="reused" if reused else "done",
        directory=str(directory),
        amounts={} if found is None else found.amounts,
        size=None if found is None else found.size,
    )


def _expected(task: StageTask, known: Known, machine: frozenset[str]) -> Estimate:
    rule = driver(task)
    amount = rule.expected(task, known)
    before = tuple(needed.label for needed in task.requires().values())
    own = {}
    if amount is not None:
        rows = {**rows_of_whole(task, known, amount), **expected_rows(task, amount)}
        own = {rule.name: amount, **rows}
    empty = Estimate(task.label, "run", str(task.directory), before, amounts=own)
    if amount is None:
        return empty
    found, measured, cached = _source(task, rule, known, machine, amount)
    if found is None:
        return empty
    ratio = amount / measured
    amounts = own | scaled_amounts(found, ratio) | {rule.name: amount}
    amounts |= expected_rows(task, amount, found)
    seconds = found.launch_seconds + found.start_seconds if cached else scaled_seconds(found, ratio)
    notes = ["" if found.device in machine else f"measured on {found.device or 'another device'}"]
    return Estimate(
        label=task.label,
        state="run",
        directory=str(task.directory),
        needs=before,
        seconds=seconds,
        gpu_seconds=gpu_seconds(found, seconds, max(needs(task).gpus, 1)),
        amounts=amounts,
        cost=cost_of(amounts, prices(task)),
        size=found.size if found.size is None or rule.constant_size else found.size * ratio,
        source=found.origin,
        note="; ".join(filter(None, [*notes, "results are cached" if cached else ""])),
    )


def _source(
    task: StageTask, rule: Driver, known: Known, machine: frozenset[str], amount: float
) -> tuple[Measured | None, float, bool]:
    """The output to go by, its amount, and whether only its start counts.

    Where the results of this stage's model are cached, that is an output that found them cached too;
    without one, the start of another output.
    """
    candidates = [
        (found, measured)
        for found in known.earlier.of(task.stage, *rule.stages)
        if (measured := measured_amount(rule, found, known.earlier)) is not None
    ]
    cached = rule.cached(task, known)
    alike = [pair for pair in candidates if rule.was_cached(pair[0]) == cached]
    if chosen := nearest(task.key, task.store.root, machine, alike, amount):
        return *chosen, False
    if cached and (chosen := nearest(task.key, task.store.root, machine, candidates, amount)):
        return *chosen, True
    return None, 0.0, False
