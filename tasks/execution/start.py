"""Start a stage's process as the setting ``execution`` says: here, on Ray, or on Slurm."""

from __future__ import annotations

import importlib.util
import os
import socket
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from pipeline.config import Config, Trainer
from pipeline.core.errors import ConfigError, DependencyError
from pipeline.run.fork_server import ForkServer
from pipeline.run.supervisor import run_stage
from pipeline.run.worker import StageJob

_PACKAGES = {"ray": "ray", "slurm": "submitit"}  # by extra
_CONNECT_SECONDS = 10.0


@dataclass(frozen=True)
class Resources:
    """The needs of a stage over all its machines: GPUs, and one CPU thread for each process."""

    gpus: int = 0
    threads: int = 1


@dataclass(frozen=True)
class StageRun:
    """One run of a stage.

    ``label`` is the stage's name in messages, ``environment`` the variables that the stage's
    process gets besides the variables of this process, ``machines`` the number of machines that
    train together, and ``memory_hint`` a way to take less memory. ``started`` is called with the
    log when the stage has its lock, and ``noted`` with notes of a cluster. ``server`` is the fork
    server for its process.
    """

    job: StageJob
    label: str
    environment: Mapping[str, str]
    needs: Resources
    machines: int
    memory_hint: str
    started: Callable[[Path], None]
    noted: Callable[[str], None]
    server: ForkServer | None = None


def start_stage(stage: StageRun, settings: Config) -> dict[str, int]:
    """Run a stage to its end; returns its row counts. Raises StageFailed with cause and remedy."""
    if settings.execution.kind != "local":
        from tasks.execution.cluster import run_on_cluster

        return run_on_cluster(stage, settings.execution)
    return run_stage(
        stage.job,
        {**os.environ, **stage.environment},
        stage.memory_hint,
        stage.started,
        server=stage.server,
    )


def check_execution(settings: Config) -> None:
    """Raise before anything runs when stages cannot be started.

    DependencyError names a missing package or a Ray cluster that does not answer, and ConfigError
    machines of training that do not fit the executor.
    """
    kind = settings.execution.kind
    if (module := _PACKAGES.get(kind)) and importlib.util.find_spec(module) is None:
        raise DependencyError(
            f"execution is {kind}, and the package {module} is missing; pip install 'steep[{kind}]'"
        )
    if kind == "ray":
        _check_address(settings.execution.ray.address or os.environ.get("RAY_ADDRESS", ""))
    for name in ("sft", "dpo", "grpo"):
        trainer: Trainer | None = getattr(settings, name)
        if trainer is None:
            continue
        if trainer.machines > 1 and kind == "local":
            raise ConfigError(
                f"{name}.machines is {trainer.machines}, and execution is local, which has one "
                f"machine; set {name}.machines to 1, or execution to ray or slurm"
            )
        if trainer.processes % trainer.machines:
            raise ConfigError(
                f"{name}.processes is {trainer.processes} and {name}.machines is "
                f"{trainer.machines}; expected the same number of processes on each machine; set "
                f"{name}.processes to a multiple of it"
            )


def _check_address(address: str) -> None:
    """Raise DependencyError when nothing listens at ``host:port``; Ray itself tries for minutes."""
    host, _, port = address.rpartition(":")
    if not host:  # auto: a cluster of this machine
        return
    try:
        socket.create_connection((host.strip("[]"), int(port)), _CONNECT_SECONDS).close()
    except OSError as error:
        raise DependencyError(
            f"no Ray cluster answers at {address} ({error.strerror or error}); start one (ray "
            "start --head), or correct execution.ray.address (RAY_ADDRESS)"
        ) from None
