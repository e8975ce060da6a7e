"""The plan of a run: GPU memory, disk and hours of every stage, from the configuration alone.

Input: the tasks of a run, the sizes of its data, and the GPUs of a machine. Output: a `Plan`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

from pipeline.core.gpus import Gpu
from pipeline.core.model_shapes import shape_of
from pipeline.engine.needs import needs
from pipeline.engine.opened import Opened, Requests, Work
from pipeline.engine.plan.clock import Clock
from pipeline.engine.plan.memory import Parts, gib, peak, share_faults, smallest
from pipeline.engine.plan.money import ceiling_faults, money_lines
from pipeline.engine.plan.sizes import Sizes
from pipeline.engine.stage import StageTask, whole_name


@dataclass(frozen=True)
class StagePlan:
    """One stage, over all rounds and policies.

    Attributes:
        gpus: GPUs on each machine; 0 if the stage uses none.
        memory: of each GPU.
        work: of all rounds and policies.
    """

    stage: str
    gpus: int
    memory: Parts
    work: Work


@dataclass(frozen=True)
class Plan:
    """The stages in running order, the smallest of the GPUs that they run on, and what they open.

    Stages that hold little are left out.
    """

    stages: tuple[StagePlan, ...]
    gpu: Gpu | None
    opened: Sequence[Opened] = ()

    @property
    def unknown(self) -> list[str]:
        """The models of unknown shape, whose memory is not planned."""
        models = {one.name for one in self.opened if one.is_model and one.name}
        return sorted(name for name in models if shape_of(name) is None)

    @property
    def disk(self) -> float:
        """Bytes on disk at the end, including the second copy that an index stage holds."""
        return sum(stage.work.disk for stage in self.stages)

    @property
    def seconds(self) -> float:
        """Seconds of all stages, of a GPU or without GPUs of a CPU core."""
        return sum(stage.work.seconds for stage in self.stages)

    @property
    def asked(self) -> list[Requests]:
        """The requests of all stages to endpoints."""
        return [
            replace(one, stage=stage.stage) for stage in self.stages for one in stage.work.requests
        ]

    def faults(self) -> Iterator[str]:
        """One sentence for each stage that does not fit the GPU, with the settings to change.

        And one for each paid endpoint without a ceiling.
        """
        yield from ceiling_faults(self.asked)
        device = None if self.gpu is None else self.gpu.memory
        if device is None:
            return
        yield from dict.fromkeys(share_faults(self.opened, device))
        for stage in self.stages:
            memory = stage.memory
            if memory.size > device:
                yield (
                    f"{stage.stage} needs {gib(memory.size)} GiB on a GPU of {gib(device)} GiB "
                    f"({memory.text()}); lower {' or '.join(dict.fromkeys(memory.remedies))}"
                )


def make_plan(tasks: Iterable[StageTask], sizes: Sizes, gpus: Sequence[Gpu]) -> Plan:
    """The plan of the stages of ``tasks``; without ``gpus`` hours of a core count."""
    clock, found, everything = Clock(sizes, gpus=bool(gpus)), dict[str, StagePlan](), list[Opened]()
    for task in tasks:
        opened, work, name = list(task.opens()), task.work(clock), whole_name(task)
        everything += opened
        if not opened and not work.disk:
            continue
        memory = peak(task.settings, opened, sizes, gpus) if gpus else Parts()
        one = StagePlan(name, _gpus(task, gpus) if memory.device else 0, memory, work)
        if before := found.get(name):  # of another round or policy
            larger = max(before, one, key=lambda stage: stage.memory.size)
            one = replace(larger, work=before.work + work)
        found[name] = one
    return Plan(tuple(found.values()), smallest(gpus), everything)


def _gpus(task: StageTask, gpus: Sequence[Gpu]) -> int:
    """The GPUs that a stage uses at once, all of its shards together."""
    run, shards = task.run_settings, list(task.shards().values()) or [task]
    owned = run.gpus or len(gpus)
    each = needs(shards[0], owned).gpus
    at_once = min(run.workers or owned + 1, len(shards))
    return each * max(1, min(at_once, owned // max(1, each)))


def summary(plan: Plan | None, downloads: Sequence[tuple[str, float | None]]) -> Iterator[str]:
    """A plan in a few lines: memory of GPUs, disk, GPU hours, and models to fetch."""
    if plan is None or not plan.stages:
        return
    yield f"{_devices(plan)}disk about {gib(plan.disk)} GiB"
    if plan.seconds:
        of = "GPU hours" if plan.gpu else "hours of one CPU core, give or take a factor of 4"
        hours = f"{plan.seconds / 3600:,.1f}"
        about = "less than 0.1" if hours == "0.0" else f"about {hours}"
        yield f"{about} {of}, computed and not measured"
    yield from money_lines(plan.asked)
    for name, size in downloads:
        amount = "of unknown size" if size is None else f"about {gib(size)} GiB"
        yield f"will be fetched from the hub: {name} ({amount})"


def _devices(plan: Plan) -> str:
    largest = max(plan.stages, key=lambda stage: stage.memory.size)
    if plan.gpu is None or not largest.memory.device:
        return "no GPU; "
    of = "" if plan.gpu.memory is None else f" of {gib(plan.gpu.memory)}"
    most = max(stage.gpus for stage in plan.stages)
    named = f"{most} GPU{'s' * (most > 1)}"
    return f"{named}, at most {gib(largest.memory.size)} GiB{of} ({largest.stage}); "
