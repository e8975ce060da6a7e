"""Run a stage and everything that it needs through Luigi, and report failures."""

from __future__ import annotations

import shutil
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

from pipeline.core.atomic import replacing
from pipeline.core.errors import ConfigError, SteepError, StoreError
from pipeline.engine import removal
from pipeline.engine.build import build, preloaded, told_once
from pipeline.engine.execution.leases import Capacity
from pipeline.engine.failures import explain_os_error
from pipeline.engine.job import LOCK_SECONDS, aligned, check_output, say
from pipeline.engine.progress import FailureRecord
from pipeline.engine.progress_bars import shown
from pipeline.engine.removal import Cleaning
from pipeline.engine.resolved import keep_dtypes, write_resolved
from pipeline.engine.stage import STAGES, LightTask, Outputs, StageTask, resolved, walk
from pipeline.engine.store import Depth


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
        directory = check_output(task, Depth.SIZES)
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
        check_output(read, Depth.SIZES, outputs)
    for shard in task.shards().values() if force else ():
        with shard.store.locked(shard.stage, shard.key.fingerprint, LOCK_SECONDS):
            shard.store.discard(shard.key)
    task.attempt.forced = force
    try:
        with ExitStack() as stack:
            for store in {needed.store for needed in [*todo, *inputs.values()]}:
                stack.enter_context(store.used())  # `steep gc` then removes nothing
            stack.enter_context(shown(tasks))
            stack.enter_context(preloaded(todo))
            failures = build(task, todo, capacity)
    finally:
        task.attempt.forced = False
    if not task.complete() or (force and failures):
        raise _failed(todo, failures)


def _failed(todo: list[StageTask], failures: Mapping[str, FailureRecord]) -> RunFailed:
    failed = [
        (needed.label, failures[needed.task_id]) for needed in todo if needed.task_id in failures
    ]
    if not failed:
        return RunFailed(
            f"{todo[-1].label} was completed, and another process is making it again (--force); "
            "wait for it, then run the command again",
            2,
        )
    return RunFailed(told_once(failed), failed[-1][1].exit_status)


def clean(task: StageTask) -> Cleaning:
    """Remove incomplete outputs and checkpoints, except of running processes."""
    cleaning = Cleaning()
    for store in sorted({needed.store for needed in walk(task)}, key=lambda store: store.root):
        found = removal.clean(store, STAGES)
        cleaning.removed += found.removed
        cleaning.left += found.left
    return cleaning
