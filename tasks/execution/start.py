"""Start a stage's process as the setting ``execution`` says: here, on Ray, or on Slurm."""

from __future__ import annotations

import importlib.util
import os
import socket

from pipeline.config import Config, Trainer
from pipeline.core.errors import ConfigError, DependencyError
from pipeline.run.supervisor import run_stage
from tasks.execution.cluster import run_on_cluster
from tasks.execution.stage_run import StageRun

_PACKAGES = {"ray": "ray", "slurm": "submitit"}  # by extra
_CONNECT_SECONDS = 10.0


def start_stage(stage: StageRun, settings: Config) -> dict[str, int]:
    """Run a stage to its end; returns its row counts. Raises StageFailed with cause and remedy."""
    if settings.execution.kind != "local":
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
