"""How far a running stage is, in a small file beside its checkpoints.

Input: the reports of a stage (`pipeline.core.progress`). Output: ``<fingerprint>.progress.json``,
written at most twice a second, which ``steep run`` and ``steep status`` read. It is not flushed to
the disk, and the stage continues when the disk is too full for it. Beside it,
``<fingerprint>.failed.json`` says how the last attempt failed.
"""

from __future__ import annotations

import contextlib
import json
import math
import os
import socket
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from pipeline.core.errors import InputError
from pipeline.core.input_files import read_json
from pipeline.core.progress import Progress

JOB = "STEEP_JOB"  # environment variable that names the job of an executor
_WRITES = 2  # in a second; two at once let the numbers of a step follow its count
_WINDOW = 60.0  # seconds over which the rate is measured
_UNITS = ((1.0, "s"), (60.0, "min"), (3600.0, "h"))  # of rates


@dataclass(frozen=True)
class ProgressRecord:
    """The content of a progress file.

    ``rate`` is in items per second, None until it is known. ``started`` and ``updated`` are seconds
    since 1970: when the process ``pid``, which wrote the record, began to work, and when it wrote.
    ``seconds`` is the time between them. ``host`` is the machine of that process, and ``job`` names
    the job of an executor in which it runs.
    """

    done: int
    total: int | None
    unit: str
    rate: float | None
    seconds: float
    values: dict[str, float]
    pid: int
    started: float
    updated: float
    host: str = ""
    job: str = ""

    @property
    def holder(self) -> str:
        """For example "process 4711 on node5, of slurm job 123 on node5"."""
        of_job = f", of {self.job}" if self.job else ""
        return f"process {self.pid} on {self.host or 'this machine'}{of_job}"

    @property
    def alive(self) -> bool:
        """Whether the process lives; a process of another machine counts as alive, unchecked."""
        if self.host not in ("", socket.gethostname()):
            return True
        try:
            os.kill(self.pid, 0)
        except ProcessLookupError:
            return False
        except OSError:  # of another user
            return True
        return True

    @property
    def percent(self) -> float | None:
        """The share of the items that are done, in percent; None when their number is unknown."""
        return None if not self.total else round(100 * self.done / self.total, 1)

    @property
    def remaining_seconds(self) -> float | None:
        """Seconds for the items that are left, at the present rate."""
        if self.total is None or not self.rate:
            return None
        return round((self.total - self.done) / self.rate, 1)

    def to_json(self) -> dict[str, Any]:
        """The fields that ``steep status --json`` shows."""
        shown = ("done", "total", "unit", "percent", "rate", "remaining_seconds", "values")
        return {name: getattr(self, name) for name in shown}

    @property
    def share(self) -> str:
        """For example "41 %"; empty when it is unknown."""
        return "" if self.percent is None else f"{math.floor(self.percent)} %"

    @property
    def count(self) -> str:
        """For example "1,024 of 2,480 trajectories"; empty before the first count."""
        of = "" if self.total is None else f" of {self.total:,}"
        return f"{self.done:,}{of} {self.unit}" if self.unit else ""

    def details(self) -> list[str]:
        """Rate, remaining time and values as texts; unknown values are left out."""
        parts = [rate_text(self.rate)] if self.rate else []
        if self.remaining_seconds is not None:
            parts.append(f"about {duration(self.remaining_seconds)} left")
        return [*parts, *(value_text(name, value) for name, value in self.values.items())]

    def sentence(self) -> str:
        """For example "41 % (1,024 of 2,480 trajectories, 38/s, about 38 s left)"."""
        inside = ", ".join(part for part in (self.count, *self.details()) if part)
        return f"{self.share} ({inside})" if self.share and inside else inside or "starting"


def rate_text(rate: float) -> str:
    """Items per second, minute or hour: the first of these that is at least 1."""
    seconds, unit = next((unit for unit in _UNITS if rate * unit[0] >= 1), _UNITS[-1])
    number = rate * seconds
    return f"{number:,.0f}/{unit}" if number >= 10 else f"{number:.1f}/{unit}"


def duration(seconds: float) -> str:
    """For example "38 s", "12 min" or "2 h 05 min"."""
    if seconds < 100:
        return f"{seconds:.0f} s"
    minutes = round(seconds / 60)
    return f"{minutes} min" if minutes < 60 else f"{minutes // 60} h {minutes % 60:02d} min"


def value_text(name: str, value: float) -> str:
    """For example "1,234 tokens/s" or "loss 0.512"."""
    if name.endswith("_per_second"):
        return f"{value:,.0f} {name.removesuffix('_per_second').replace('_', ' ')}/s"
    return f"{name.replace('_', ' ')} {value:.3g}"


class ProgressFile(Progress):
    """Writes the reported progress to ``path``; several threads may use it.

    ``clock`` gives seconds, and is replaced in tests.
    """

    def __init__(self, path: Path, clock: Callable[[], float] = time.monotonic) -> None:
        self.path = path
        self._clock = clock
        self._began = clock()
        self._started = time.time()
        self._lock = threading.Lock()
        self._written: deque[float] = deque(maxlen=_WRITES)
        self._values: dict[str, float] = {}
        self._samples: deque[tuple[float, int]] = deque()
        self._total: int | None = None
        self._unit, self._done = "", 0

    def begin(self) -> None:
        """Write a first record: the stage runs, and its items are not counted yet."""
        with self._lock:
            self._write()

    def start(self, total: int | None, unit: str, done: int = 0) -> None:
        with self._lock:
            self._total, self._unit, self._done = total, unit, done
            self._values = {}
            self._samples = deque([(self._clock(), done)])
            self._write()

    def advance(self, n: int = 1) -> None:
        with self._lock:
            self._count(n)

    def skip(self, n: int) -> None:
        with self._lock:
            self._samples = deque((at, done + n) for at, done in self._samples)
            self._count(n)

    def show(self, **values: float) -> None:
        with self._lock:
            self._values |= {name: value for name, value in values.items() if math.isfinite(value)}
            self._write_when_due()

    def _count(self, n: int) -> None:
        before = self._done
        self._done += n
        if self._total is not None:  # a repeated request counts once
            self._done = min(self._done, self._total)
        self._write_when_due(at_once=before < self._done == self._total)

    def _write_when_due(self, at_once: bool = False) -> None:
        if at_once or len(self._written) < _WRITES or self._clock() - self._written[0] >= 1:
            self._write()

    def _write(self) -> None:
        now = self._clock()
        self._written.append(now)
        record = ProgressRecord(
            done=self._done,
            total=self._total,
            unit=self._unit,
            rate=self._rate(now),
            seconds=round(now - self._began, 2),
            values=self._values,
            pid=os.getpid(),
            started=self._started,
            updated=time.time(),
            host=socket.gethostname(),
            job=os.environ.get(JOB, ""),
        )
        _replace(self.path, asdict(record))

    def _rate(self, now: float) -> float | None:
        """Items per second over the last minute, or since the start of the work."""
        samples = self._samples
        if not samples:
            return None
        while len(samples) > 1 and samples[1][0] <= now - _WINDOW:
            samples.popleft()
        samples.append((now, self._done))
        seconds, items = now - samples[0][0], self._done - samples[0][1]
        return round(items / seconds, 4) if items > 0 and seconds > 0 else None


@dataclass(frozen=True)
class FailureRecord:
    """How the last attempt of a stage failed: a sentence, exit status, log and time (UTC)."""

    message: str
    exit_status: int
    log: str | None = None
    time: str = field(default_factory=lambda: time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()))

    def write(self, path: Path) -> None:
        """Write it to ``path``; a full disk is ignored, because the sentence is also printed."""
        with contextlib.suppress(OSError):
            path.parent.mkdir(parents=True, exist_ok=True)
        _replace(path, asdict(self))


def read_progress(path: Path) -> ProgressRecord | None:
    """The record of a progress file; None when the file is missing or cannot be read."""
    value = _read(path)
    try:
        record = ProgressRecord(**value)
        record.sentence()
    except (TypeError, ValueError, ArithmeticError, AttributeError):
        return None
    return record


def read_failure(path: Path) -> FailureRecord | None:
    """The record of a failure file; None when the file is missing or cannot be read."""
    value = _read(path)
    try:
        failure = FailureRecord(**value)
    except TypeError:
        return None
    return failure if isinstance(failure.message, str) else None


def _read(path: Path) -> dict[str, Any]:
    try:
        value = read_json(path)
    except (InputError, OSError):  # absent, or torn
        return {}
    return value if isinstance(value, dict) else {}


def _replace(path: Path, value: Mapping[str, Any]) -> None:
    """Write JSON in one rename, without flushing it to the disk; errors of the disk are ignored."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        temporary.write_text(json.dumps(value), encoding="utf-8")
        temporary.replace(path)
    except OSError:
        with contextlib.suppress(OSError):
            temporary.unlink(missing_ok=True)
