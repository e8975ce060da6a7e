"""What a driver is asked to do, and what it learns of the stage while that runs elsewhere.

A driver is started in place of the stage's process and keeps its contract: the job on standard input, reports
on a pipe (`pipeline.run.worker.Reports`). It ends with the process that started it, also when that is killed, and
cancels its job before.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TypeAlias

from pipeline.core.process_variables import VARIABLES, thread_variables
from pipeline.run.progress import ProgressRecord, read_progress
from pipeline.run.remote import RemoteStage
from pipeline.run.store import StageKey, Store
from pipeline.run.worker import Reports

_LOCK_SECONDS = (
    120.0  # a server of a network file system keeps the locks of a lost machine for a while
)
_NO_LOCK_SECONDS = 60.0  # a stage that has just ended has no lock, and its files may be seen late
_ENDING = (signal.SIGTERM, signal.SIGINT)

Note: TypeAlias = Callable[[str], None]
Drive: TypeAlias = "Callable[[Request, Watch, Note], dict[str, Any]]"


@dataclass(frozen=True)
class Request:
    """What a driver gets beside the job.

    ``gpus``, ``processes`` and CPU ``threads`` are those of each machine, and ``threads_without_gpu`` what it takes
    in place of ``threads`` where it gets no GPU.
    """

    stage: RemoteStage
    label: str
    gpus: int
    processes: int
    threads: int
    threads_without_gpu: int
    settings: dict[str, Any]

    def with_threads(self, most: int, note: Note) -> Request:
        """The request with ``most`` threads or fewer, and with the variables that the stage's processes need for that.

        Each of the processes has at least one. ``note`` is told where an exported variable allows fewer.
        """
        threads = max(self.processes, min(self.threads, most))
        each = threads // self.processes
        variables = thread_variables(each, os.environ)
        fewer = {name: variables[name] for name in VARIABLES if int(variables[name]) < each}
        if fewer:
            told = ", ".join(f"{name} is {value}" for name, value in fewer.items())
            note(
                f"{told} here, so it computes with fewer than its {each} CPU threads; unset what is exported to use all"
            )
        stage = replace(self.stage, environment={**self.stage.environment, **variables})
        return replace(self, threads=threads, stage=stage)


def read_request() -> tuple[Request, Reports]:
    """The request and the reports of this process, which is a driver.

    The job comes on standard input, and waits longer for its lock than a stage of one machine: a server keeps
    the locks of a lost machine for a while.
    """
    reports = Reports(int(sys.argv[1]))
    fields = json.loads(sys.argv[2])
    job = json.load(sys.stdin)
    job["lock_seconds"] = max(job["lock_seconds"], _LOCK_SECONDS)
    fields["stage"] = RemoteStage(**{**fields["stage"], "job": job})
    return Request(**fields), reports


class Watch:
    """What a driver learns of a running stage from its file of reports, and passes on.

    ``placed`` says whether the stage's job has got its resources and begun.

    It also finds out whether the file system locks between machines: the stage holds its lock from the
    report of its log on. A free lock alone does not tell, because a stage whose node is lost, or whose job waits in
    the queue again, has none either. A free lock of a stage whose progress changes does.
    """

    def __init__(self, request: Request, reports: Reports) -> None:
        self._path = Path(request.stage.folder) / "reports.jsonl"
        job = request.stage.job
        self._store, self._key = Store(Path(job["root"])), StageKey(**job["key"])
        self._reports = reports
        self._read = 0
        self._unlocked_since: float | None = None
        self._progress: ProgressRecord | None = None  # when the lock had been free for long
        self._running = False
        self.placed = False

    def look(self) -> str | None:
        """Pass on what is new; returns a reason to end the stage, or None."""
        try:
            text = self._path.read_bytes()
        except OSError:
            return None
        whole = text[: text.rfind(b"\n") + 1]
        new, self._read = whole[self._read :], len(whole)
        for line in new.splitlines():
            try:
                report = json.loads(line)
            except ValueError:  # a network file system may show blocks that are not written yet
                continue
            self.placed = True
            if "log" not in report:
                continue
            self._running, self._unlocked_since, self._progress = True, None, None
            self._reports.send(log=report["log"])
            self._reports.send(note=f"runs in {report['where']}")
        return self._without_lock() if self._running else None

    def attempt_ended(self) -> None:
        """The stage does not run at present."""
        self._running = self.placed = False

    def _without_lock(self) -> str | None:
        if self._store.in_use(self._key) or self._store.complete(self._key):
            self._unlocked_since = self._progress = None
            return None
        now = time.monotonic()
        if self._unlocked_since is None:
            self._unlocked_since = now
        if now - self._unlocked_since < _NO_LOCK_SECONDS:
            return None
        progress = read_progress(self._store.progress_file(self._key))
        before, self._progress = self._progress, self._progress or progress
        if before is None or progress is None or progress == before:
            return None
        if self._store.in_use(self._key):  # the stage has just started again
            return None
        return (
            f"the stage runs on another machine and its lock in {self._store.root} is free here, so the file system "
            "does not lock files between machines; mount it with locks (NFS 4, or Lustre with -o flock)"
        )


def failed(message: str, status: int = 2) -> dict[str, Any]:
    """The outcome of a stage that failed with ``message``."""
    return {"status": status, "message": message, "busy": False, "log": None}


def end_at_signals() -> None:
    """Let the first SIGTERM or SIGINT raise SystemExit; later ones are ignored while the job is cancelled.

    A shell starts jobs in the background with SIGINT ignored, and so would be the processes that this one
    starts. submitit cancels its local jobs by that signal.
    """

    def stop(number: int, frame: Any) -> None:
        for each in _ENDING:
            signal.signal(each, signal.SIG_IGN)
        raise SystemExit(128 + number)

    for each in _ENDING:
        signal.signal(each, stop)


@contextmanager
def signals_delayed() -> Iterator[None]:
    """Delay SIGTERM and SIGINT to the end of the block, so that a job that it submits is known."""
    received: list[int] = []
    before = {
        each: signal.signal(each, lambda number, frame: received.append(number)) for each in _ENDING
    }
    try:
        yield
    finally:
        for each, handler in before.items():
            signal.signal(each, handler)
        for number in received[:1]:
            os.kill(os.getpid(), number)


def drive(run: Drive) -> int:
    """The main function of a driver: ``run`` returns the outcome, which is reported.

    Returns the exit status. SIGTERM and SIGINT raise SystemExit in ``run``, which cancels its job.
    """
    end_at_signals()
    request, reports = read_request()
    watch = Watch(request, reports)
    outcome = run(request, watch, lambda text: reports.send(note=text))
    watch.look()
    reports.send(**outcome)
    return int(outcome.get("status", 0))
