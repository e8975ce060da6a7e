"""Stages as processes of this machine."""

from __future__ import annotations

import os

from pipeline.run.supervisor import run_stage
from tasks.executors.base import Executor, StageRun


class LocalExecutor(Executor):
    """Starts the stage's process as a child of this one."""

    def run(self, stage: StageRun) -> dict[str, int]:
        return run_stage(
            stage.job,
            {**os.environ, **stage.environment},
            stage.memory_hint,
            stage.started,
            preloaded=stage.preloaded,
        )
