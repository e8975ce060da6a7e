"""Run a stage on a cluster: the parts that Ray and Slurm share.

A driver (`pipeline.engine.execution.ray`, `pipeline.engine.execution.slurm`) runs in place of the
stage's process and keeps its contract: the job on standard input, reports on a pipe, an end with
the process that started it. It hands the stage to the cluster, where `run_here` starts the stage's
process as on one machine, with its lock, its checkpoints and its rename in the store, which the
machines share.
"""

from __future__ import annotations

import fcntl
import json
import os
import shutil
import socket
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from pipeline.config import Executor
from pipeline.core.errors import StoreError
from pipeline.core.gpus import VISIBLE
from pipeline.core.process_variables import thread_variables
from pipeline.engine.failures import explain_os_error
from pipeline.engine.opened import Needs
from pipeline.engine.process.supervisor import StageFailed, StageJob, run_stage
from pipeline.engine.process.worker import Reports
from pipeline.engine.progress import JOB
from pipeline.engine.store import MANIFEST, Store

_VISIBLE_SECONDS = 60.0  # caches of network file systems hide new files for up to a minute
_LOCK_SECONDS = 120.0  # a server of a network file system keeps the locks of a lost machine
_REPORTS, _RUN_LOCK = "reports.jsonl", "run.lock"  # files beside the job
AGAIN = "run the command again, and the stage continues from its last checkpoint"
_SHARED = "keep it on a file system that all machines mount at the same path"


@dataclass(frozen=True)
class Request:
    """A stage for a cluster; every value but the job is a JSON value.

    ``name`` is the word for a job in messages, ``directory`` the working directory, ``folder`` the
    directory of the job's files. ``gpus`` and ``processes`` are its needs, ``each`` the CPU threads
    for each GPU, and ``slurm`` is the block ``execution.slurm``.
    """

    name: str
    label: str
    directory: str
    folder: str
    memory_hint: str
    environment: dict[str, str]
    gpus: int
    processes: int
    each: int
    slurm: dict[str, Any]
    job: StageJob

    @property
    def threads(self) -> int:
        """The CPU threads of its GPUs, and at least one for each process."""
        return max(self.processes, self.each * max(self.gpus, 1))

    def variables(self) -> dict[str, str]:
        """The environment variables of the stage, with the CPU threads of a process."""
        threads = self.threads // self.processes
        return {**self.environment, **thread_variables(threads, os.environ)}


def run_on_cluster(
    job: StageJob,
    settings: Executor,
    environment: Mapping[str, str],
    memory_hint: str,
    started: Callable[[Path], None],
    noted: Callable[[str], None],
    *,
    label: str,
    needs: Needs,
) -> dict[str, int]:
    """Run a stage through the driver of its cluster; returns its row counts.

    ``noted`` is called with notes of the cluster, and the other arguments are as in `run_stage`.
    Raises StageFailed.
    """
    # The cluster decides which GPUs the stage sees; the stage has no lease of this machine's.
    inherited = {name: value for name, value in os.environ.items() if name != VISIBLE}
    jobs = Path(job.root).absolute().parent / "jobs"
    try:
        jobs.mkdir(parents=True, exist_ok=True)
        folder = tempfile.mkdtemp(prefix=f"{label}-", dir=jobs)  # kept when the stage fails
    except OSError as error:
        raise StoreError(explain_os_error(error, jobs)) from None
    request = {
        "name": "ray task" if settings.kind == "ray" else f"{settings.slurm.cluster} job",
        "label": label,
        "directory": str(Path.cwd()),
        "folder": folder,
        "memory_hint": memory_hint,
        "environment": dict(environment),
        "gpus": needs.gpus,
        "processes": needs.threads,
        "each": settings.threads,
        "slurm": settings.slurm.model_dump(mode="json"),
    }
    counts = run_stage(
        replace(job, lock_seconds=max(job.lock_seconds, _LOCK_SECONDS)),
        {**inherited, **environment},
        memory_hint,
        started,
        command=(f"pipeline.engine.execution.{settings.kind}", json.dumps(request)),
        noted=noted,
    )
    shutil.rmtree(folder, ignore_errors=True)
    manifest = Store(Path(job.root)).directory(job.key) / MANIFEST
    if not visible(manifest):
        raise StageFailed(
            f"the stage is complete on its machine, and {manifest} is not seen here; {_SHARED}"
        )
    return counts


class Watch:
    """Passes the starts of a stage that runs elsewhere on to the run.

    The stage's machine writes them into a file. To read them from the record of progress was tried:
    a start whose stage ended between two looks was lost, because a complete stage has no record.
    """

    def __init__(self, request: Request, reports: Reports) -> None:
        self._folder, self._reports, self._starts = Path(request.folder), reports, 0

    def note(self, text: str) -> None:
        """Show a line of the run."""
        self._reports.send(note=text)

    def look(self) -> None:
        """Pass on the stage's starts since the last look."""
        with suppress(OSError, ValueError):  # not there yet, or not yet whole
            lines = (self._folder / _REPORTS).read_text().splitlines()
            for line in lines[self._starts :]:
                report = json.loads(line)
                self._starts += 1
                self._reports.send(log=report["log"])
                again = f", from its checkpoint (start {self._starts})" if self._starts > 1 else ""
                self.note(f"runs in {report['where']}{again}")


def failed(message: str, status: int = 2) -> dict[str, Any]:
    """The outcome of a stage that failed with ``message``."""
    return {"status": status, "message": message}


def drive(run: Callable[[Request, Watch], dict[str, Any]]) -> int:
    """The main function of a driver: report the outcome of ``run``; returns the exit status."""
    reports = Reports(int(sys.argv[1]))
    request = Request(job=StageJob(**json.load(sys.stdin)), **json.loads(sys.argv[2]))
    watch = Watch(request, reports)
    with (Path(request.folder) / _RUN_LOCK).open("ab") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # the stage's machine tests whether it sees this lock
        outcome = run(request, watch)
    watch.look()
    reports.send(**outcome)
    return int(outcome.get("status", 0))


def run_here(request: Request, job: str) -> dict[str, Any]:
    """Run a stage on this machine of the cluster; ``job`` names the job.

    Returns ``{"counts": ROWS}`` or, when the stage failed, ``{"status", "message", "busy",
    "log"}``.
    """
    where, task = f"{request.name} {job} on {socket.gethostname()}", request.job
    inputs = [Path(request.directory, path, MANIFEST) for path in task.context["inputs"].values()]
    for path in (Path(request.directory), Path(request.folder), *inputs):
        if not visible(path):
            return failed(f"{where} does not see {path}; {_SHARED}")
    os.chdir(request.directory)
    if not _is_locked(Path(request.folder) / _RUN_LOCK):
        return failed(
            f"{where}: no process holds the lock of the run in {request.folder}; the run has "
            "ended, or the file system does not lock files between machines; mount it with locks "
            "(NFS 4, or Lustre with -o flock)"
        )

    def started(log: Path) -> None:
        reports = Path(request.folder) / _REPORTS
        with suppress(OSError), reports.open("a") as stream:
            stream.write(json.dumps({"log": str(log), "where": where}) + "\n")

    try:
        environment = {**os.environ, **request.variables(), JOB: where}
        return {"counts": run_stage(task, environment, request.memory_hint, started)}
    except StageFailed as failure:
        log = None if failure.log is None else str(failure.log)
        return {**failed(failure.cause, failure.exit_status), "busy": failure.busy, "log": log}


def _is_locked(path: Path) -> bool:
    """Whether this machine sees the lock that another process holds on a file."""
    with path.open("ab") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
    return False


def visible(path: Path, seconds: float = _VISIBLE_SECONDS) -> bool:
    """Whether ``path`` exists, after waiting for the cache of a network file system."""
    deadline = time.monotonic() + seconds
    while not path.exists():
        if time.monotonic() > deadline:
            return False
        with suppress(OSError):
            for folder in (path.parent.parent, path.parent):
                list(folder.iterdir())  # NFS then asks its server again
        time.sleep(0.5)
    return True
