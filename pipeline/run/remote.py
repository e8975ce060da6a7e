"""Run a stage on another machine of a cluster, or in another job, for an executor.

The executor (`tasks.executors`) calls `run_remote` there. The stage's process is the same as on one
machine, and so are its lock, its checkpoints and its rename, all in the store on a file system that the
machines share. What the caller must know while the stage runs is appended to a file of reports beside the
job, because the result of a job comes at its end.
"""

from __future__ import annotations

import contextlib
import json
import os
import socket
import subprocess
import sys
import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from pipeline.run import process
from pipeline.run.progress import JOB
from pipeline.run.store import MANIFEST
from pipeline.run.supervisor import StageFailed, run_stage
from pipeline.run.worker import StageJob

MACHINES = "STEEP_MACHINES"  # environment variable with a `Machines` as JSON, for training
ENDED = "ended"  # the file that tells the other machines that the stage has ended
_VISIBLE_SECONDS = 60.0  # caches of network file systems hide new files for up to a minute


@dataclass(frozen=True)
class Machines:
    """The machines of a stage that trains on several.

    ``count`` is their number and ``rank`` that of this machine, from 0. ``folder`` is a shared directory of this
    attempt, and ``address`` a name or IP address of this machine that the others can reach.
    """

    count: int
    rank: int
    folder: str
    address: str

    def as_environment(self) -> dict[str, str]:
        """The environment variable with which a process reads it (`machines_here`)."""
        return {MACHINES: json.dumps(asdict(self))}


def machines_here() -> Machines | None:
    """The machines of the stage of this process; None when it has only this one."""
    text = os.environ.get(MACHINES)
    return None if text is None else Machines(**json.loads(text))


@dataclass(frozen=True)
class RemoteStage:
    """A stage to run elsewhere; every field is a JSON value.

    ``directory`` is the working directory, ``folder`` the directory of the job's files, ``memory_hint`` what
    lowers the memory, ``name`` the executor's word for a job, and ``environment`` variables for the stage's
    process beside those of the job's. ``machines`` is the number of machines of the stage.
    """

    job: dict[str, Any]
    directory: str
    folder: str
    memory_hint: str
    name: str
    environment: dict[str, str] = field(default_factory=dict)
    machines: int = 1


def run_remote(
    stage: RemoteStage, job: str, rank: int = 0, attempt: str = "0", address: str | None = None
) -> dict[str, Any]:
    """Run a stage, or take part in its training when ``rank`` is above 0.

    ``job`` names the job, ``attempt`` is one text for all machines of an attempt, and ``address`` is that of
    this machine. Returns ``{"counts": ROWS}`` or, when the stage failed, ``{"status", "message", "busy", "log"}``;
    it is empty for a rank above 0 that has ended well.
    """
    where = f"{stage.name} {job} on {socket.gethostname()}"
    try:
        os.chdir(stage.directory)
    except OSError as error:
        return _failed(
            f"{where}: {stage.directory} cannot be entered ({error.strerror}); run from a directory that "
            "every machine of the cluster mounts at the same path"
        )
    reports = Path(stage.folder) / "reports.jsonl"
    _report(reports, placed=where)
    attempt_folder = Path(stage.folder) / f"attempt-{attempt}"
    attempt_folder.mkdir(parents=True, exist_ok=True)
    machines = Machines(stage.machines, rank, str(attempt_folder), address or socket.gethostname())
    environment = {**os.environ, **stage.environment, JOB: where}
    if stage.machines > 1:
        environment |= machines.as_environment()
    if rank > 0:
        return _follow(environment, where)
    task = StageJob(**stage.job)
    missing = [path for path in task.inputs.values() if not visible(Path(path) / MANIFEST)]
    if missing:
        return _failed(
            f"{where} does not see {missing[0]}; put runs_dir on a file system that every machine of "
            "the cluster mounts"
        )

    def started(log: Path) -> None:
        _report(reports, log=str(log), where=where)

    try:
        return {"counts": run_stage(task, environment, stage.memory_hint, started)}
    except StageFailed as failure:
        return {
            "status": failure.exit_status,
            "message": failure.cause,
            "busy": failure.busy,
            "log": None if failure.log is None else str(failure.log),
        }
    finally:
        with contextlib.suppress(OSError):
            (attempt_folder / ENDED).touch()


def _report(reports: Path, **report: str) -> None:
    with contextlib.suppress(OSError), reports.open("a") as stream:
        stream.write(json.dumps(report) + "\n")


def visible(path: Path, seconds: float = _VISIBLE_SECONDS) -> bool:
    """Whether ``path`` is there, waiting for the cache of a network file system."""
    deadline = time.monotonic() + seconds
    while not path.exists():
        if time.monotonic() > deadline:
            return False
        with contextlib.suppress(OSError):
            for folder in (path.parent.parent, path.parent):
                list(folder.iterdir())  # NFS then asks its server again
        time.sleep(0.5)
    return True


def _follow(environment: Mapping[str, str], where: str) -> dict[str, Any]:
    done = subprocess.run(
        [sys.executable, "-m", process.MODULE, "pipeline.stages.launch", "--follow"],
        env={**environment, **process.child_environment()},
        check=False,
    )
    if done.returncode == 0:
        return {}
    return _failed(f"training ended with status {done.returncode} in {where}; see the job's output")


def _failed(message: str) -> dict[str, Any]:
    return {"status": 2, "message": message, "busy": False, "log": None}
