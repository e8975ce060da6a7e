"""Run a stage and everything that it needs through Luigi, and report failures."""

from __future__ import annotations

import shutil
import time
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from pathlib import Path
from typing import Any

from pipeline.core.atomic import replacing
from pipeline.core.errors import ConfigError, SteepError, StoreError
from pipeline.run import removal
from pipeline.run.failures import explain_os_error
from pipeline.run.progress import FailureRecord
from pipeline.run.removal import Cleaning
from pipeline.run.store import Depth
from pipeline.training.trackers import check_trackers
from tasks.base import StageTask, aligned, say
from tasks.build import build, check_needs, told_once
from tasks.corpus import Corpus
from tasks.evaluate import Evaluate, EvaluatePolicy
from tasks.execution.leases import Capacity
from tasks.execution.start import check_execution
from tasks.folders import check_folders, check_writable
from tasks.given_policy import Start
from tasks.graph import Graph
from tasks.hypergraph import Hypergraph, HyperIndex
from tasks.index import Index
from tasks.judge import Judge, JudgePolicy
from tasks.pair import Pair
from tasks.preloading import preloaded
from tasks.progress_bars import shown
from tasks.questions import SPLITS
from tasks.report import Report
from tasks.resolved import keep_dtypes, write_resolved
from tasks.sample import Sample
from tasks.score import Score
from tasks.sft import Sft
from tasks.sft_data import SftData
from tasks.sharding import ShardedTask, unused_work
from tasks.train import Train
from tasks.world import World

STAGES: dict[str, type[StageTask]] = {
    task.stage: task
    for task in (
        World, Corpus, Graph, Index, Hypergraph, HyperIndex, SftData, Sft, Start, Sample, Judge, Score,
        Pair, Train, Evaluate, Report,
    )
}  # fmt: skip
# Stages of one policy; ``round`` is its number. They have no command of their own.
PER_POLICY: dict[str, type[StageTask]] = {
    task.stage: task for task in (EvaluatePolicy, JudgePolicy)
}
# The questions of one split; they have no command of their own.
PER_SPLIT: dict[str, type[StageTask]] = {task.stage: task for task in SPLITS.values()}
PER_ROUND = frozenset({"sample", "judge", "score", "pair", "train"})


class RunFailed(SteepError, RuntimeError):
    """One or more stages failed; ``exit_status`` is that of the last."""

    def __init__(self, message: str, exit_status: int) -> None:
        super().__init__(message)
        self.exit_status = exit_status


def task_for(
    stage: str,
    config: str,
    overrides: tuple[str, ...] = (),
    data: str | None = None,
    round: int | None = None,
) -> StageTask:
    """The task of a stage; ``round`` defaults to 1 for the stages in `PER_ROUND`.

    Raises ConfigError for an unknown stage, a round that the run does not have, a round of a stage
    without rounds, or a run's directory that is a file.
    """
    task = _task_for(stage, config, overrides, data, round)
    if task.round_number is not None:
        task.run_settings.check_round(task.round_number)
    check_folders(task.settings)
    return task


def _task_for(
    stage: str, config: str, overrides: tuple[str, ...], data: str | None, round: int | None
) -> StageTask:
    if stage in PER_POLICY:
        if round is None or round < 0:
            raise ConfigError(f"stage {stage} needs --round with the number of a policy: 0 is SFT")
        return PER_POLICY[stage](config=config, overrides=overrides, data=data, number=round)
    stages = {**STAGES, **PER_SPLIT}
    if stage not in stages:
        raise ConfigError(f"no stage {stage!r}; there are {', '.join(stages)}")
    common: dict[str, Any] = {"config": config, "overrides": overrides, "data": data}
    if stage not in PER_ROUND:
        if round is not None:
            rounds = ", ".join(name for name in STAGES if name in PER_ROUND)
            raise ConfigError(
                f"round is {round}, but stage {stage} has no rounds; remove --round (ROUND=), which "
                f"is for the stages {rounds}"
            )
        return stages[stage](**common)
    if round is not None and round < 1:
        raise ConfigError(f"round is {round}; rounds count from 1")
    return STAGES[stage](**common, round=round or 1)


def walk(
    task: StageTask, *, elsewhere: bool = False, seen: set[str] | None = None
) -> Iterator[StageTask]:
    """A task and everything that it needs, each once, in running order.

    ``elsewhere`` adds the stages whose output is on another machine (retrieval services).
    """
    seen = set() if seen is None else seen
    if task.task_id in seen:
        return
    seen.add(task.task_id)
    for needed in (*task.requires().values(), *(task.upstream().values() if elsewhere else ())):
        yield from walk(needed, elsewhere=elsewhere, seen=seen)
    yield task


def run(
    task: StageTask,
    *,
    workers: int | None = None,
    force: bool = False,
    keep_config: bool = False,
    check: bool = True,
) -> Path:
    """Run the incomplete stages that ``task`` needs, and ``task``; returns its directory.

    With ``force`` the stage of ``task`` runs although it is complete; with ``keep_config`` the run's
    configuration is written to its directory first. With ``check`` the stages that are to run are checked
    before the first of them, as by ``steep check``. Raises RunFailed with the message of every failed stage;
    complete stages stay complete. Raises before anything runs: RunRefused with every fault of the checks,
    ConfigError for fewer than one worker and for too few GPUs, StoreError when an output that would be read
    is damaged, a directory cannot be written, or another process runs the stage with ``force``.
    """
    if workers is not None and workers < 1:
        raise ConfigError(
            f"workers is {workers}; expected at least 1, the number of stages that run at once; raise "
            "--workers (WORKERS=), or leave it out for the setting workers"
        )
    tasks = _with_keys(task, force, check)
    with _os_errors(task.settings.run_dir), _alone(task) if force else nullcontext():
        if keep_config:
            write_resolved(task.run_settings)
        if force or not task.complete():
            todo = [needed for needed in tasks if needed is task or not needed.complete()]
            if check:
                _check(tasks, todo)
            local = task.run_settings.execution.kind == "local"
            capacity = (Capacity.of if local else Capacity.expected)(task.run_settings, workers)
            check_needs(todo, capacity)
            if kept := keep_dtypes(task.resolved):
                say(aligned("plan", kept))
            _run(tasks, todo, capacity, force)
        task.check_output(Depth.FOOTERS)
        if task.stage == "report":
            publish(task)
        return task.directory


@contextmanager
def _os_errors(run_dir: Path) -> Iterator[None]:
    """Raise StoreError for errors of the files beside the stages, whose own errors are failures of tasks."""
    try:
        yield
    except OSError as error:
        raise StoreError(explain_os_error(error, run_dir)) from None


def _alone(task: StageTask) -> AbstractContextManager[None]:
    """Hold the lock of forced runs of a stage: a second one would discard the output of the first.

    Raises StageBusy when another process holds it.
    """
    return task.store.locked(task.stage, f"{task.key.fingerprint}-forced", timeout=0)


def _with_keys(task: StageTask, force: bool, check: bool) -> list[StageTask]:
    """The stages of `_needed` with their keys, which only exist where the data files and models do.

    Raises what making the keys raises; with ``check`` RunRefused where the checks find more.
    """
    try:
        tasks = _needed(task, force)
        for needed in tasks:
            _ = needed.key
    except SteepError as error:
        if check:
            from tasks.checks.starting import check_with

            check_with(error, task)
        raise
    return tasks


def _check(tasks: list[StageTask], todo: list[StageTask]) -> None:
    """Check the stages that are to run, and print their plan."""
    from tasks.checks.starting import check_start, plan_lines

    for line in plan_lines(check_start(tasks, todo)):
        say(aligned("plan", line))


def _needed(task: StageTask, force: bool) -> list[StageTask]:
    """The stages of `walk`; with ``force`` the shards of ``task`` are among them, complete or not."""
    task.forced = force
    try:
        return list(walk(task))
    finally:
        task.forced = False


def _run(tasks: list[StageTask], todo: list[StageTask], capacity: Capacity, force: bool) -> None:
    """Run ``todo``, the last of which ``force`` is about; ``tasks`` has the complete ones too.

    Both are in running order. The plan of the run is kept (`tasks.planning.review`).
    """
    from tasks.planning import review
    from tasks.planning.plan import make_plan

    task = todo[-1]
    if any(isinstance(needed, Sft | Train) for needed in todo):
        check_trackers(task.settings.trackers)
    check_execution(task.settings)
    run_dir, started = task.settings.run_dir, time.monotonic()
    check_writable({run_dir / "logs", *(needed.store.root for needed in todo)})
    inputs = {read.task_id: read for needed in todo for read in needed.requires().values()}
    for read in inputs.values():
        read.check_output(Depth.FOOTERS)
    if force and isinstance(task, ShardedTask):
        task.discard_shards()
    for line in unused_work(todo):
        say(f"warning: {line}")
    kept = review.keep(run_dir, make_plan(task, tasks, capacity, forced=force))
    task.forced = force
    try:
        with shown(todo), preloaded(todo):
            failures = build(task, todo, capacity)
    finally:
        task.forced = False
    if not task.complete() or (force and failures):
        raise _failed(todo, failures)
    review.finish(run_dir, kept, time.monotonic() - started)


def _failed(todo: list[StageTask], failures: Mapping[str, FailureRecord]) -> RunFailed:
    failed = [
        (needed.label, failures[needed.task_id]) for needed in todo if needed.task_id in failures
    ]
    if not failed:
        return RunFailed(
            f"{todo[-1].label} was completed, and another process is making it again (--force); wait for "
            "it, then run the command again",
            2,
        )
    return RunFailed(told_once(failed), failed[-1][1].exit_status)


def publish(report: StageTask) -> None:
    """Copy the report's page and numbers to the run's directory, if they differ.

    Raises StoreError when they cannot be written.
    """
    for name in ("report.html", "metrics.json", "report.json"):
        source, target = report.directory / name, report.settings.run_dir / name
        try:
            if not target.is_file() or target.read_bytes() != source.read_bytes():
                with replacing(target) as temporary:
                    shutil.copyfile(source, temporary)
        except OSError as error:
            raise StoreError(explain_os_error(error, target)) from None


def clean(task: StageTask) -> Cleaning:
    """Remove incomplete outputs and checkpoints, except those of running processes."""
    cleaning = Cleaning()
    for store in sorted({needed.store for needed in walk(task)}, key=lambda store: store.root):
        found = removal.clean(store, stage_names(StageTask))
        cleaning.removed += found.removed
        cleaning.left += found.left
    return cleaning


def stage_names(base: type[StageTask]) -> set[str]:
    """The stages of all task classes below ``base``, so also those that this configuration lacks."""
    names = {name} if (name := base.__dict__.get("stage")) else set()
    return names.union(*(stage_names(kind) for kind in base.__subclasses__()))
