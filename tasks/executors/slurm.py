"""Stages as Slurm jobs, submitted by submitit."""

from __future__ import annotations

from typing import Any

from pipeline.config import Slurm
from tasks.executors.base import ClusterExecutor, StageRun, Threads


class SlurmExecutor(ClusterExecutor):
    """Submits each stage as a job of its own; the nodes share the run's directory."""

    driver = "pipeline.run.cluster.slurm_driver"

    def __init__(self, settings: Slurm, threads: Threads) -> None:
        self._settings = settings
        self.threads = threads
        self.word = "slurm job" if settings.cluster == "slurm" else "local job"
        self.gives_devices = settings.cluster == "slurm"

    def settings(self, stage: StageRun) -> dict[str, Any]:
        return self._settings.model_dump(mode="json")
