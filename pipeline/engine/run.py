"""Run a stage and everything that it needs through Luigi, and report failures.

The scheduler counts the run's GPUs and CPU threads that running stages use (Luigi's resources).
Among stages that can start, those earlier in running order go first. A stage that waits for GPUs or
threads that only later stages hold reserves them, so that others do not take them one by one.

On Linux without a GPU a fork server (`pipeline.engine.process.fork_server`) imports the packages
that the stages of the run need, while the first stages run.

A run keeps two files of its configuration: ``config.yaml`` with bases, overrides and defaults
resolved, and ``dtypes.json``, the number formats that ``dtype: auto`` means.
"""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import replace
from pathlib import Path

from pipeline.config import Config
from pipeline.config.machine_choices import DTYPES, Resolved, fewer_processes, read_dtypes
from pipeline.config.writing import as_yaml
from pipeline.core.atomic import replacing, write_json, write_text
from pipeline.core.errors import ConfigError, SteepError, StoreError
from pipeline.core.gpus import machine_gpus
from pipeline.engine.failures import explain_os_error
from pipeline.engine.job import (
    LOCK_SECONDS,
    aligned,
    check_output,
    environment,
    keep_failure,
    run_stage_of,
    say,
)
from pipeline.engine.leases import Capacity
from pipeline.engine.luigi_adapter import schedule
from pipeline.engine.needs import imported_by, imports_of, needs
from pipeline.engine.opened import Needs, Training
from pipeline.engine.process.fork_server import ForkServer
from pipeline.engine.process.supervisor import WORKER
from pipeline.engine.progress import FailureRecord
from pipeline.engine.progress_bars import shown
from pipeline.engine.stage import (
    PUBLISHED,
    RESOLVED,
    LightTask,
    Outputs,
    StageTask,
    resolved,
    walk,
)

_GPUS, _THREADS = "gpus", "threads"  # names of Luigi's resources
_HEADER = """\
# The configuration of the latest `steep run` of this run: bases and --set are merged, and defaults
# written out. Used with --config in the same directory, it gives the same stages.
"""


class RunFailed(SteepError, RuntimeError):
    """One or more stages failed; ``exit_status`` is the status of the last."""

    def __init__(self, message: str, exit_status: int) -> None:
        super().__init__(message)
        self.exit_status = exit_status


def run(
    task: StageTask,
    *,
    workers: int | None = None,
    force: bool = False,
    keep_config: bool = False,
    check: bool = True,
) -> Path:
    """Run the incomplete stages that ``task`` needs, and ``task``; returns its directory.

    With ``force`` the stage of ``task`` runs although it is complete; with ``keep_config`` the
    run's configuration is written to its directory first. With ``check`` the stages that are to run
    are checked before the first of them, as by ``steep check``. Raises RunFailed with the message
    of every failed stage; complete stages stay complete. Raises before anything runs: RunRefused
    with every fault of the checks, ConfigError for fewer than one worker and for too few GPUs,
    StoreError when an output that would be read is damaged, or another process runs the stage with
    ``force``.
    """
    if workers is not None and workers < 1:
        raise ConfigError(
            f"workers is {workers}; expected at least 1, the number of stages that run at once; "
            "raise --workers (WORKERS=), or leave it out to use the setting workers"
        )
    outputs = Outputs()
    tasks = _with_keys(task, outputs, force, check)
    with _os_errors(task.settings.run_dir), ExitStack() as stack:
        if force:  # a second forced run would discard the output of the first
            name = f"{task.key.fingerprint}-forced"
            stack.enter_context(task.store.locked(task.stage, name, timeout=0))
        if keep_config:
            write_resolved(task.run_settings)
        if force or not outputs.complete(task):
            todo = [each for each in tasks if each is task or not outputs.complete(each)]
            if check:
                _check(tasks, todo)
            capacity = Capacity.of(task.run_settings, workers)
            if kept := keep_dtypes(resolved(task)):
                say(aligned("plan", kept))
            _run(tasks, todo, capacity, force)
        directory = check_output(task)
        _publish(task, directory)
        return directory


def _publish(task: StageTask, directory: Path) -> None:
    """Copy the page and the numbers of a report to the run's directory, if they differ."""
    for name in task.publishes:
        source, target = directory / name, task.settings.run_dir / name
        if not target.is_file() or target.read_bytes() != source.read_bytes():
            with replacing(target) as temporary:
                shutil.copyfile(source, temporary)


@contextmanager
def _os_errors(run_dir: Path) -> Iterator[None]:
    """Raise StoreError for errors of files outside the stages (stage errors fail their tasks)."""
    try:
        yield
    except OSError as error:
        raise StoreError(explain_os_error(error, run_dir)) from None


def _with_keys(task: StageTask, outputs: Outputs, force: bool, check: bool) -> list[StageTask]:
    """The stages of `walk` with their keys, which need the data files and models.

    With ``force`` they include the shards of ``task``, complete or not. Raises the errors of making
    the keys; with ``check`` RunRefused if the checks find more.
    """
    task.attempt.forced = force
    try:
        tasks = list(walk(task, outputs.requires))
        for needed in tasks:
            _ = needed.key
    except SteepError as error:
        if check:
            from pipeline.engine.check.collect import check_with

            check_with(error, task)
        raise
    finally:
        task.attempt.forced = False
    return tasks


def _check(tasks: list[StageTask], todo: list[StageTask]) -> None:
    """Check the stages that are to run, and print their plan.

    Light stages on this machine have no plan; the whole check runs if one of them has a fault.
    """
    with suppress(SteepError, OSError):  # the whole check collects these as well
        light = all(isinstance(one, LightTask) and not any(one.faults()) for one in todo)
        if light and todo[-1].run_settings.execution.kind == "local":
            return
    from pipeline.engine.check.collect import check_start
    from pipeline.engine.plan.plan import summary

    checked = check_start(tasks, todo)
    for line in summary(checked.plan, checked.downloads):
        say(aligned("plan", line))


def _run(tasks: list[StageTask], todo: list[StageTask], capacity: Capacity, force: bool) -> None:
    """Run ``todo`` of ``tasks``, in running order; ``force`` is about the last of them."""
    task, outputs = todo[-1], Outputs()
    inputs = {read.task_id: read for each in todo for read in outputs.requires(each).values()}
    for read in inputs.values():
        check_output(read, outputs)
    for shard in task.shards().values() if force else ():
        with shard.store.locked(shard.stage, shard.key.fingerprint, LOCK_SECONDS):
            shard.store.discard(shard.key)
    _prepare(todo, capacity)
    task.attempt.forced = force
    try:
        with ExitStack() as stack:
            for store in {needed.store for needed in [*todo, *inputs.values()]}:
                stack.enter_context(store.used())  # `steep gc` then removes nothing
            stack.enter_context(shown(tasks))
            stack.enter_context(preloaded(todo))
            counted = {_GPUS: capacity.at_once, _THREADS: capacity.threads}
            try:
                schedule(task, run_stage_of, keep_failure, counted, capacity.workers)
            except OSError as error:
                raise StoreError(explain_os_error(error, "a process for a stage")) from None
    finally:
        task.attempt.forced = False
    if not task.complete() or (force and any(one.attempt.failure for one in todo)):
        raise _failed(todo)


def asked_of(task: StageTask, capacity: Capacity) -> Needs:
    """The needs of a stage in a run with ``capacity``.

    On a cluster the GPUs of this machine do not count. Without ``gpus`` the stage then asks for all
    GPUs that it can use.
    """
    settings = task.run_settings
    known = settings.gpus > 0 or settings.execution.kind == "local"
    return needs(task, capacity.gpus if known else None)


def _prepare(todo: Sequence[StageTask], capacity: Capacity) -> None:
    """Set the needs and the priority of each task: the first in running order has the highest.

    Prints a line for each trainer that starts fewer processes than its settings say.
    """
    told: set[str] = set()
    for place, task in enumerate(todo):
        asked = asked_of(task, capacity)
        attempt = task.attempt
        attempt.needs, attempt.failure, attempt.seconds = asked, None, None
        for one in task.opens():
            if not isinstance(one, Training) or one.block in told:
                continue
            if asked.threads != one.settings.processes:
                say(aligned(task.label, fewer_processes(one.settings, one.block, capacity.gpus)))
                told.add(one.block)
        task.priority = len(todo) - place
        if task.run_settings.execution.kind == "local":  # a cluster counts for itself
            task.resources = {_THREADS: capacity.threads_for(asked.threads)}
            if capacity.at_once and asked.gpus:
                task.resources[_GPUS] = min(asked.gpus, capacity.at_once)
            attempt.capacity = capacity


def _failed(todo: Sequence[StageTask]) -> RunFailed:
    """One line for every cause: the stages with it, the message and the logs."""
    by_cause: dict[str, list[tuple[str, FailureRecord]]] = {}
    status = 0
    for task in todo:
        if failure := task.attempt.failure:
            by_cause.setdefault(failure.message, []).append((task.label, failure))
            status = failure.exit_status
    if not by_cause:
        return RunFailed(
            f"{todo[-1].label} was completed, and another process is making it again (--force); "
            "wait for it, then run the command again",
            2,
        )
    lines = []
    for message, same in by_cause.items():
        logs = list(dict.fromkeys(failure.log for _, failure in same if failure.log))
        where = f" ({'log' if len(logs) == 1 else 'logs'}: {', '.join(logs)})" if logs else ""
        lines.append(f"{', '.join(label for label, _ in same)}: {message}{where}")
    return RunFailed("\n".join(lines), status)


@contextmanager
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


def write_resolved(settings: Config) -> Path:
    """Write the configuration to the run's directory unless it is there; returns the file.

    Raises StoreError when the directory has a file of this or another name that a run writes, and
    is none of a run.
    """
    path = settings.run_dir / RESOLVED
    text = _HEADER + as_yaml(settings)
    there = path.read_bytes() if path.is_file() else b""
    others = () if there or (settings.run_dir / "store").is_dir() else PUBLISHED
    foreign = [settings.run_dir / name for name in others if (settings.run_dir / name).exists()]
    if foreign or not there.startswith(_HEADER[:40].encode() if there else b""):
        raise StoreError(
            f"{(foreign or [path])[0]} is no file of a run, and steep run would replace it; move "
            "it, or set name or runs_dir to another"
        )
    if there != text.encode():
        write_text(path, text)
    return path


def keep_dtypes(resolved: Resolved) -> str | None:
    """Keep the choice of ``dtype: auto`` for the rest of the run; returns a line if it is new.

    Raises StoreError when another process has decided otherwise meanwhile.
    """
    path = resolved.settings.run_dir / DTYPES
    kept = read_dtypes(path)
    if any(kept.get(name, dtype) != dtype for name, dtype in resolved.dtypes.items()):
        raise StoreError(
            f"{path}: another process has just started this run; run the command again"
        )
    if resolved.dtypes.keys() <= kept.keys():
        return None
    write_json(path, {**kept, **resolved.dtypes})
    chosen = ", ".join(f"{name} {dtype}" for name, dtype in resolved.dtypes.items())
    return f"auto is {chosen} (kept in {path})"
