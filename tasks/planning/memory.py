"""The memory plan of a run: its stages, and those that do not fit the GPUs.

Input: a configuration, the sizes of its data and the GPUs of a machine. Output: a `MemoryPlan`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from pipeline.config import Config
from pipeline.config.machine_choices import with_processes_on
from pipeline.core.gpus import Gpu
from tasks.planning.model_memory import Part, gib
from tasks.planning.sizes import Sizes
from tasks.planning.stage_memory import Planner, StageMemory

__all__ = ["MemoryPlan", "Part", "StageMemory", "gib", "memory_plan"]


@dataclass(frozen=True)
class MemoryPlan:
    """The stages in running order, and the smallest of the GPUs that they run on."""

    stages: tuple[StageMemory, ...]
    gpu: Gpu | None

    @property
    def ram(self) -> float:
        """The peak in RAM: that of the largest stage."""
        return max((stage.ram for stage in self.stages), default=0.0)

    @property
    def disk(self) -> float:
        """Bytes on disk at the end, with what the index stage holds twice."""
        return sum(stage.disk for stage in self.stages)

    def faults(self) -> Iterator[str]:
        """One sentence for each stage that does not fit the GPU, with the settings to change."""
        for stage in self.stages:
            yield from stage.faults
            if self.gpu is None or self.gpu.memory is None or not stage.device:
                continue
            if stage.device_bytes > self.gpu.memory:
                parts = ", ".join(f"{part.name} {gib(part.size)}" for part in stage.device)
                yield (
                    f"{stage.stage} needs {gib(stage.device_bytes)} GiB on a GPU of "
                    f"{gib(self.gpu.memory)} GiB ({parts}); lower {' or '.join(stage.remedies)}"
                )


def memory_plan(
    settings: Config, stages: Sequence[str], sizes: Sizes, gpus: Sequence[Gpu]
) -> MemoryPlan:
    """The plan of the named stages; without ``gpus`` only RAM and disk count.

    ``stages`` are names of stage tasks; others than those below (questions, pairs) hold little.
    """
    gpu = min(gpus, key=lambda one: one.memory or 0, default=None)
    planner = Planner(with_processes_on(settings, settings.gpus or len(gpus)), sizes, gpu)
    made = [planner.stage(name) for name in _distinct(stages)]
    return MemoryPlan(tuple(stage for stage in made if stage is not None), gpu)


def _distinct(stages: Iterable[str]) -> list[str]:
    return list(dict.fromkeys(stage.removesuffix("-shard") for stage in stages))
