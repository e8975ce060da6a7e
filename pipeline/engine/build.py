"""Run tasks with Luigi's local scheduler, and collect the failure of each task.

The scheduler counts the run's GPUs and CPU threads that running stages use (Luigi's resources).
Among stages that can start, those earlier in running order go first. A stage that waits for GPUs or
threads that only later stages hold reserves them, so that others do not take them one by one.

On Linux without a GPU a fork server (`pipeline.engine.process.fork_server`) imports the packages
that the stages of the run need, while the first stages run.
"""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace

from pipeline.config.machine_choices import fewer_processes
from pipeline.core.errors import StoreError
from pipeline.core.gpus import machine_gpus
from pipeline.engine.execution.leases import Capacity
from pipeline.engine.failures import explain_os_error
from pipeline.engine.job import aligned, environment, keep_failure, run_stage_of, say
from pipeline.engine.luigi_adapter import schedule
from pipeline.engine.needs import imported_by, imports_of, needs
from pipeline.engine.opened import Needs, Training
from pipeline.engine.process.fork_server import ForkServer
from pipeline.engine.process.supervisor import WORKER
from pipeline.engine.progress import FailureRecord
from pipeline.engine.stage import StageTask

GPUS, THREADS = "gpus", "threads"  # names of Luigi's resources


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
        attempt = task.attempt
        attempt.asked, attempt.failure, attempt.seconds = asked, None, None
        for one in task.opens():
            if not isinstance(one, Training) or one.block in told:
                continue
            if asked.threads != one.settings.processes:
                say(aligned(task.label, fewer_processes(one.settings, one.block, capacity.gpus)))
                told.add(one.block)
        task.priority = len(todo) - place
        if task.run_settings.execution.kind == "local":  # a cluster counts for itself
            task.resources = resources(asked, capacity)
            attempt.request = capacity.request(asked.gpus, asked.threads)


def build(
    task: StageTask, todo: Iterable[StageTask], capacity: Capacity
) -> dict[str, FailureRecord]:
    """Run ``task`` and the tasks that it needs, several at a time if the run has the capacity.

    Returns the failures of the tasks in ``todo``, by task id; ``todo`` is in running order. Raises
    StoreError when no process can be started for a task.
    """
    todo = list(todo)
    _prepare(todo, capacity)
    try:
        schedule(
            task,
            run_stage_of,
            keep_failure,
            resources={GPUS: capacity.at_once, THREADS: capacity.threads},
            workers=capacity.workers,
        )
    except OSError as error:
        raise StoreError(explain_os_error(error, "a process for a stage")) from None
    return {one.task_id: one.attempt.failure for one in todo if one.attempt.failure is not None}


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
    own = (name for task in tasks for name in imported_by(sys.modules[type(task).__module__]))
    modules |= dict.fromkeys([WORKER, *own])
    # One thread, because threads do not survive a fork; forked processes set their own number.
    inherited = {**os.environ, **environment(), "OMP_NUM_THREADS": "1"}
    with ForkServer.running(list(modules), inherited) as server:
        for task in tasks:
            task.attempt.fork_server = replace(server, modules=imports_of(task))
        try:
            yield
        finally:
            for task in tasks:
                task.attempt.fork_server = None


def _can_fork() -> bool:
    try:
        os.close(os.pidfd_open(os.getpid()))
    except (AttributeError, OSError):  # another system, and some sandboxes of containers
        return False
    return not machine_gpus()
