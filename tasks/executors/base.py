"""The interface of executors, and the parts that those on other machines share.

The unit of an executor is one stage task: its job (`pipeline.run.worker.StageJob`) and its output directory in
the store. `LocalExecutor` starts the stage's process here. The others start a process with the same contract,
the driver, which hands the stage to a cluster, waits, and reports as the stage itself would. The driver ends
with the process that started it, also when that is killed, and cancels its job first.
"""

from __future__ import annotations

import json
import os
import shutil
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Protocol

from pipeline.core.errors import StoreError
from pipeline.run.cluster.request import Request
from pipeline.run.failures import explain_os_error
from pipeline.run.remote import RemoteStage, visible
from pipeline.run.store import MANIFEST, StageKey, Store
from pipeline.run.supervisor import Preloaded, StageFailed, run_stage
from pipeline.run.worker import StageJob

_DEVICES = ("CUDA_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES")


class Resources(Protocol):
    """What a stage needs over all its machines: GPUs, CPU threads, of which each of its processes has at least one,
    and whether it opens a policy in vLLM.
    """

    @property
    def gpus(self) -> int: ...

    @property
    def threads(self) -> int: ...

    @property
    def policy(self) -> bool: ...


@dataclass(frozen=True)
class NoResources:
    """`Resources` of a stage about which nothing is known."""

    gpus: int = 0
    threads: int = 1
    policy: bool = False


@dataclass(frozen=True)
class StageRun:
    """One run of a stage.

    ``label`` is the stage's name in messages, ``environment`` the variables that the stage's process needs
    beside those of this process, ``machines`` the number of machines that train together, and
    ``memory_hint`` what takes less memory. ``started`` is called with the log when the stage has its lock, and
    ``noted`` with notes, such as that a node was lost. ``preloaded`` is the fork server of this machine for the
    stage's process.
    """

    job: StageJob
    label: str
    environment: Mapping[str, str]
    needs: Resources
    machines: int
    memory_hint: str
    started: Callable[[Path], None]
    noted: Callable[[str], None]
    preloaded: Preloaded | None = None


class Executor(ABC):
    """Runs stages somewhere."""

    @abstractmethod
    def run(self, stage: StageRun) -> dict[str, int]:
        """Run one stage to its end; returns its row counts. Raises StageFailed with cause and remedy."""


@dataclass(frozen=True)
class Threads:
    """CPU threads of a stage on one machine of a cluster: for each GPU, and without any."""

    per_gpu: int
    without_gpu: int

    def of(self, gpus: int, processes: int) -> int:
        """The threads of a stage with ``gpus`` and ``processes`` on a machine: at least one for each process."""
        return max(processes, gpus * self.per_gpu if gpus else self.without_gpu)


class ClusterExecutor(Executor):
    """Runs the process of a driver, which runs the stage on a cluster and ends with this process."""

    driver: str  # module
    word: str  # for a job, in messages
    threads: Threads
    gives_devices = (
        True  # whether the cluster, and not this process, decides which GPUs the stage sees
    )

    def run(self, stage: StageRun) -> dict[str, int]:
        own = {
            name: value
            for name, value in stage.environment.items()
            if not (self.gives_devices and name in _DEVICES)
        }
        inherited = {name: value for name, value in os.environ.items() if name not in _DEVICES}
        gpus = -(-stage.needs.gpus // stage.machines)
        processes = max(1, -(-stage.needs.threads // stage.machines))
        with _job_folder(stage) as folder:
            request = Request(
                stage=RemoteStage(
                    job={},  # the driver adds it; it comes on standard input as for the stage itself
                    directory=str(Path.cwd()),
                    folder=str(folder),
                    memory_hint=stage.memory_hint,
                    name=self.word,
                    environment=own,
                    machines=stage.machines,
                ),
                label=stage.label,
                gpus=gpus,
                processes=processes,
                threads=self.threads.of(gpus, processes),
                threads_without_gpu=self.threads.of(0, processes),
                settings=self.settings(stage),
            )
            counts = run_stage(
                stage.job,
                {**inherited, **own},
                stage.memory_hint,
                stage.started,
                command=(self.driver, json.dumps(asdict(request))),
                noted=stage.noted,
            )
        key = StageKey(**stage.job.key)
        manifest = Store(Path(stage.job.root)).directory(key) / MANIFEST
        if not visible(manifest):
            raise StageFailed(
                f"the stage is complete on its machine, and {manifest} is not seen here; put runs_dir on a "
                "file system that this machine and the cluster share"
            )
        return counts

    @abstractmethod
    def settings(self, stage: StageRun) -> dict[str, Any]:
        """The settings for the driver of a stage, as JSON values."""


@contextmanager
def _job_folder(stage: StageRun) -> Iterator[Path]:
    """A directory for the files of one job beside the run's store; kept when the stage fails."""
    key = StageKey(**stage.job.key)
    name = f"{stage.label}-{key.fingerprint}-{os.getpid()}-{time.time_ns() // 1_000_000}"
    folder = Path(stage.job.root).absolute().parent / "jobs" / name
    try:
        folder.mkdir(parents=True)
    except OSError as error:
        raise StoreError(explain_os_error(error, folder)) from None
    yield folder
    shutil.rmtree(folder, ignore_errors=True)
