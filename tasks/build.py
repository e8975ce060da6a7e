"""Run tasks with Luigi's local scheduler, and collect the failure of each task.

The scheduler counts the run's GPUs and CPU threads that running stages use (Luigi's resources).
Among stages that can start, those earlier in running order go first. A stage that waits for GPUs or
threads that only later stages hold reserves them, so that others do not take them one by one.

On Linux without a GPU a fork server (`pipeline.run.fork_server`) imports the packages that the
stages of the run need, while the first stages run.
"""

from __future__ import annotations

import contextlib
import ctypes
import logging
import os
import sys
import threading
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import luigi
from luigi.scheduler import Scheduler
from luigi.worker import Worker

from pipeline.config.machine_choices import fewer_processes
from pipeline.core.errors import StoreError
from pipeline.core.gpus import machine_gpus
from pipeline.run.failures import explain_os_error
from pipeline.run.fork_server import ForkServer
from pipeline.run.progress import FailureRecord
from pipeline.run.supervisor import WORKER
from tasks.base import StageTask, aligned, say
from tasks.execution.leases import Capacity
from tasks.needs import imports_of, needs
from tasks.opened import Needs, Training

GPUS, THREADS = "gpus", "threads"  # names of Luigi's resources


class _TaskThread(threading.Thread):
    """Runs a task in place of the process that Luigi would fork.

    The task itself only waits for its stage's process. A fork of a process with threads, as pyarrow
    and torch start them, can crash or hang.
    """

    def __init__(self, process: Any) -> None:
        super().__init__(daemon=True)  # a run that is interrupted twice does not wait for it
        self._process = process

    def run(self) -> None:
        self._process.use_multiprocessing = False  # else it sets the seed of `random`
        with contextlib.suppress(KeyboardInterrupt):
            self._process.run()

    def terminate(self) -> None:
        """Interrupt the task as Ctrl-C does in the main thread, and wait for its end."""
        interrupt = ctypes.pythonapi.PyThreadState_SetAsyncExc
        interrupt(ctypes.c_ulong(self.ident or 0), ctypes.py_object(KeyboardInterrupt))
        self.join()


class _Worker(Worker):
    """Luigi's worker, with threads in place of forked processes."""

    def _create_task_process(self, task: StageTask) -> Any:
        process = super()._create_task_process(task)
        thread = _TaskThread(process)
        process.start, process.is_alive = thread.start, thread.is_alive
        process.terminate = thread.terminate
        return process


def asked_of(task: StageTask, capacity: Capacity) -> Needs:
    """The needs of a stage in a run with ``capacity``.

    On a cluster the GPUs of this machine do not count. Without ``gpus`` the stage then asks for all
    GPUs that it can use.
    """
    settings = task.run_settings
    known = settings.gpus > 0 or settings.execution.kind == "local"
    return needs(task, capacity.gpus if known else None)


def resources(asked: Needs, capacity: Capacity) -> dict[str, int]:
    """The GPUs and CPU threads of the run that a stage takes while it runs."""
    taken = {THREADS: capacity.threads_for(asked.threads)}
    if capacity.at_once and asked.gpus:
        taken[GPUS] = min(asked.gpus, capacity.at_once)
    return taken


def _prepare(todo: Sequence[StageTask], capacity: Capacity) -> None:
    """Set the needs and the priority of each task: the first in running order has the highest.

    Prints a line for each trainer that starts fewer processes than its settings say.
    """
    told: set[str] = set()
    for place, task in enumerate(todo):
        asked = asked_of(task, capacity)
        task.asked, task.failure, task.seconds = asked, None, None
        for one in task.opens():
            if not isinstance(one, Training) or one.block in told:
                continue
            if asked.threads != one.settings.processes:
                say(aligned(task.label, fewer_processes(one.settings, one.block, capacity.gpus)))
                told.add(one.block)
        task.priority = len(todo) - place
        if task.run_settings.execution.kind == "local":  # a cluster counts for itself
            task.resources = resources(asked, capacity)
            task.request = capacity.request(asked.gpus, asked.threads)


def build(
    task: StageTask, todo: Iterable[StageTask], capacity: Capacity
) -> dict[str, FailureRecord]:
    """Run ``task`` and the tasks that it needs, several at a time if the run has the capacity.

    Returns the failures of the tasks in ``todo``, by task id; ``todo`` is in running order. Raises
    StoreError when no process can be started for a task.
    """
    todo = list(todo)
    _prepare(todo, capacity)
    settings = luigi.configuration.get_config()
    settings.set("core", "no_configure_logging", "true")
    for name in ("luigi", "luigi-interface", "luigi.scheduler"):
        logging.getLogger(name).setLevel(logging.CRITICAL)  # stages report for themselves
    scheduler = Scheduler(
        prune_on_get_work=True,
        record_task_history=False,
        resources={GPUS: capacity.at_once, THREADS: capacity.threads},
    )
    local = SimpleNamespace(create_local_scheduler=lambda: scheduler, create_worker=_Worker)
    try:
        luigi.build(
            [task], worker_scheduler_factory=local, local_scheduler=True, workers=capacity.workers
        )
    except OSError as error:
        raise StoreError(explain_os_error(error, "a process for a stage")) from None
    return {one.task_id: one.failure for one in todo if one.failure is not None}


def told_once(failures: Sequence[tuple[str, FailureRecord]]) -> str:
    """One line for every cause: the stages with it, the message and the logs.

    ``failures`` are labels of stages with their failures.
    """
    by_cause: dict[str, list[tuple[str, FailureRecord]]] = {}
    for label, failure in failures:
        by_cause.setdefault(failure.message, []).append((label, failure))
    lines = []
    for message, same in by_cause.items():
        logs = list(dict.fromkeys(failure.log for _, failure in same if failure.log))
        where = f" ({'log' if len(logs) == 1 else 'logs'}: {', '.join(logs)})" if logs else ""
        lines.append(f"{', '.join(label for label, _ in same)}: {message}{where}")
    return "\n".join(lines)


@contextlib.contextmanager
def preloaded(todo: Iterable[StageTask]) -> Iterator[None]:
    """Run a fork server for the stages of ``todo`` if one has heavy imports and it can run here."""
    tasks = list(todo)
    modules = dict.fromkeys(name for task in tasks for name in imports_of(task))
    settings = tasks[-1].run_settings if modules else None
    if settings is None or settings.execution.kind != "local" or settings.gpus or not _can_fork():
        yield
        return
    modules |= dict.fromkeys([WORKER, *(task.entry.partition(":")[0] for task in tasks)])
    # One thread, because threads do not survive a fork; forked processes set their own number.
    environment = {**os.environ, **tasks[-1].environment(), "OMP_NUM_THREADS": "1"}
    with ForkServer.running(list(modules), environment) as server:
        for task in tasks:
            task.fork_server = replace(server, modules=imports_of(task))
        try:
            yield
        finally:
            for task in tasks:
                task.fork_server = None


def _can_fork() -> bool:
    return sys.platform == "linux" and not machine_gpus()
