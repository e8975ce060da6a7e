"""Run tasks with Luigi's local scheduler, and collect the failure of each task."""

from __future__ import annotations

import json
import logging
from collections.abc import Iterable
from typing import Any

import luigi

from pipeline.core.errors import StoreError
from pipeline.run.failures import explain_os_error
from tasks.base import StageTask
from tasks.failures import Failure, from_text


class _Local:
    """Makes Luigi's scheduler and worker, and keeps the scheduler, which knows why tasks failed."""

    def __init__(self) -> None:
        from luigi.scheduler import Scheduler

        self.scheduler = Scheduler(prune_on_get_work=True, record_task_history=False)

    def create_local_scheduler(self) -> Any:
        return self.scheduler

    def create_worker(self, scheduler: Any, worker_processes: int, assistant: bool = False) -> Any:
        from luigi.worker import Worker

        return Worker(scheduler=scheduler, worker_processes=worker_processes, assistant=assistant)


def build(task: StageTask, todo: Iterable[StageTask], workers: int) -> dict[str, Failure]:
    """Run ``task`` and the tasks that it needs, ``workers`` at a time.

    Returns the failures by task id, of the tasks in ``todo``. Raises StoreError when no process can be
    started for a task.
    """
    settings = luigi.configuration.get_config()
    settings.set("core", "no_configure_logging", "true")
    for name in ("luigi", "luigi-interface", "luigi.scheduler"):
        logging.getLogger(name).setLevel(logging.CRITICAL)  # stages report for themselves
    local = _Local()
    try:
        luigi.build([task], worker_scheduler_factory=local, local_scheduler=True, workers=workers)
    except OSError as error:
        raise StoreError(explain_os_error(error, "a process for a stage")) from None
    failures = {}
    for needed in todo:
        kept = local.scheduler.fetch_error(needed.task_id)["error"]
        text = json.loads(kept) if kept else None  # Luigi keeps the text as JSON
        if text:
            failures[needed.task_id] = from_text(text)
    return failures
