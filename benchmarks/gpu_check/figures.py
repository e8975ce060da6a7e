"""What a part of the GPU check measures, and where: named figures, clocks and memory."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Literal

from pipeline.core.gpus import GIB


@dataclass(frozen=True, slots=True)
class Figure:
    """One measured value. ``holds`` is the verdict on a figure that has an ``expected`` value."""

    name: str
    value: float | str
    unit: str = ""
    expected: str = ""
    holds: bool | None = None


@dataclass(slots=True)
class Figures:
    """The figures of a part, in the order in which they were measured."""

    rows: list[Figure] = field(default_factory=list)

    def add(
        self, name: str, value: float | str, unit: str = "", *, expected: str = "",
        holds: bool | None = None,
    ) -> None:  # fmt: skip
        self.rows.append(Figure(name, value, unit, expected, holds))


@dataclass(frozen=True, slots=True)
class Place:
    """Where a part runs: the device, the sizes, and a directory for models.

    ``model`` is the published model whose shape the part has, unless the sizes are ``tiny``.
    ``dtype`` is the number format of base weights: bfloat16, on a CPU usually float32, since its
    bfloat16 is slow.
    """

    device: Literal["cuda", "cpu"]
    tiny: bool
    workspace: str
    model: str
    dtype: Literal["bfloat16", "float32"] = "float32"

    @property
    def cuda(self) -> bool:
        return self.device == "cuda"


def synchronize() -> None:
    """Wait for the GPU, so that a clock read next measures finished work."""
    import torch

    if torch.cuda.is_available():
        torch.cuda.synchronize()


def reset_peak() -> None:
    """Free unused memory and start measuring the peak of the GPU's memory."""
    import gc

    import torch

    gc.collect()
    if torch.cuda.is_available():
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()


def add_peak(figures: Figures, name: str = "peak memory") -> None:
    """Add the peaks of allocated and reserved GPU memory since `reset_peak`; nothing on a CPU."""
    import torch

    if torch.cuda.is_available():
        figures.add(name, torch.cuda.max_memory_allocated() / GIB, "GiB")
        reserved = torch.cuda.max_memory_reserved() / GIB
        figures.add(f"{name}, with the allocator's reserve", reserved, "GiB")


@contextmanager
def timed(seconds: list[float]) -> Iterator[None]:
    """Append the seconds that the block takes, the GPU's work included."""
    synchronize()
    start = time.perf_counter()
    yield
    synchronize()
    seconds.append(time.perf_counter() - start)


@contextmanager
def watched(place: Place) -> Iterator[dict[str, int]]:
    """The largest use of the GPU's memory by all processes while the block runs, and its size."""
    peak, ended = {"used": 0, "of": 0}, threading.Event()

    def watch() -> None:
        import torch

        while place.cuda and not ended.wait(0.02):
            free, total = torch.cuda.mem_get_info()
            peak.update(used=max(peak["used"], total - free), of=total)

    watcher = threading.Thread(target=watch, daemon=True)
    watcher.start()
    try:
        yield peak
    finally:
        ended.set()
        watcher.join()
