"""Alternating timing of contenders, and the rows of the result table.

Input: functions that do the same work. Output: processor seconds of every run, in rounds A B C A B
C ..., so that other load on the machine affects all contenders of a round; `Row`s with the median
of the ratios within a round. The timed work runs in one thread (``make bench`` sets
OMP_NUM_THREADS=1) without waiting. On an idle core processor seconds therefore equal wall-clock
seconds; under load only processor seconds exclude the other work.
"""

from __future__ import annotations

import gc
import os
import platform
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from time import process_time
from typing import Any

LEAST_REPEATS = 5


@dataclass(frozen=True)
class Row:
    """One line of the table: the same work by our code and by a peer.

    ``ours`` and ``peer`` are figures in ``unit``, paired by round. The ratio is the median over
    rounds of peer / ours. If ``ours_over_peer`` is set, it is the median of ours / peer. Without a
    peer there is no ratio.
    """

    name: str
    work: str
    peer_name: str
    ours: list[float]
    peer: list[float] | None
    unit: str
    goal: str = ""
    ours_over_peer: bool = False
    details: dict[str, Any] = field(default_factory=dict)

    @property
    def ratios(self) -> list[float]:
        pairs = zip(self.ours, self.peer, strict=True) if self.peer is not None else ()
        return [ours / peer if self.ours_over_peer else peer / ours for ours, peer in pairs]

    @property
    def ratio(self) -> float | None:
        return median(self.ratios) if self.ratios else None

    def as_json(self) -> dict[str, Any]:
        """The row with all figures as JSON values."""
        return {
            "row": self.name,
            "work": self.work,
            "peer": self.peer_name,
            "unit": self.unit,
            "ours_median": median(self.ours),
            "peer_median": median(self.peer) if self.peer is not None else None,
            "ratio": self.ratio,
            "ratio_is": "ours / peer" if self.ours_over_peer else "peer / ours",
            "ratios": self.ratios,
            "goal": self.goal,
            "ours": self.ours,
            "peer_values": self.peer,
            **self.details,
        }


def alternate(
    contenders: Mapping[str, Callable[[], object]],
    repeats: int,
    clock: Callable[[], float] = process_time,
) -> dict[str, list[float]]:
    """Processor seconds of every run by contender: one warm-up round, then ``repeats`` rounds.

    Garbage is collected before each run and not during it. Work that waits, or runs in other
    processes, needs a ``clock`` of wall time.
    """
    seconds: dict[str, list[float]] = {name: [] for name in contenders}
    for number in range(repeats + 1):
        for name, work in contenders.items():
            gc.collect()
            gc.disable()
            try:
                start = clock()
                work()
                spent = clock() - start
            finally:
                gc.enable()
            if number:
                seconds[name].append(spent)
    return seconds


def per(seconds: list[float], count: int, scale: float = 1e6) -> list[float]:
    """Seconds of whole runs as microseconds (or another ``scale``) per one of ``count`` parts."""
    return [value / count * scale for value in seconds]


def machine() -> dict[str, Any]:
    """A description of the machine: processor, cores, threads, load, Python and system."""
    load = os.getloadavg()[0]
    return {
        "processor": processor(),
        "cores": os.cpu_count(),
        "threads": os.environ.get("OMP_NUM_THREADS", "not set"),
        "load_at_start": round(load, 2),
        "python": platform.python_version(),
        "system": platform.system(),
    }


def processor() -> str:
    """The name of the CPU."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        return platform.processor() or "unknown"
    names = (line.split(":", 1)[1].strip() for line in lines if line.startswith("model name"))
    return next(names, platform.machine())
