"""The job of a stage: its process here or on a cluster, its line, and its failure.

Input: a task. The stage's process fills and completes the output
(`pipeline.engine.process.worker`); a failure is kept in the task's `Attempt` and beside the output.
"""

from __future__ import annotations

import os
import shlex
import time
import traceback
from contextlib import suppress
from pathlib import Path

from pipeline.core import shipped
from pipeline.core.errors import SteepError, StoreError
from pipeline.core.process_variables import MALLOC
from pipeline.engine.failures import explain_os_error
from pipeline.engine.fingerprint import select_execution
from pipeline.engine.leases import NO_LEASE, Lease, held
from pipeline.engine.opened import Training
from pipeline.engine.process.supervisor import StageFailed, StageJob, run_stage
from pipeline.engine.progress import FailureRecord
from pipeline.engine.shards import ShardTask
from pipeline.engine.stage import Outputs, StageTask
from pipeline.engine.store import problems, read_manifest

LOCK_SECONDS = 15.0  # how long to wait for another process with the stage
# Ends of the names of settings whose reduction lowers the memory of a stage.
_MEMORY = ("batch", "batch_size", "in_flight", "max_num_seqs")


def run_stage_of(task: StageTask) -> None:
    """Run the stage of ``task``, unless an output from inputs with the same content exists.

    Raises StageFailed naming the log and the cause, StoreError when an input is damaged.
    """
    attempt, began, output = task.attempt, time.monotonic(), Outputs().of(task)
    if output is None or attempt.forced:
        with held(
            attempt.capacity, attempt.needs, lambda text: say(aligned(task.label, text))
        ) as attempt.lease:
            _start(task)
    elif output.reused:
        say(
            aligned(
                task.label,
                f"reused: its inputs have the content that {output.directory} was made from",
            )
        )
    attempt.seconds = time.monotonic() - began


def _start(task: StageTask) -> None:
    """Run the stage in a separate process, which prints into the run's log directory."""
    outputs, facts = Outputs(), task.facts()
    trains = any(isinstance(one, Training) for one in task.opens())
    directories = {}
    for name, read in outputs.requires(task).items():
        if outputs.of(read) is None:
            raise StoreError(f"{read.label} is no longer complete; run the command again")
        directories[name] = check_output(read, outputs, contents=trains)
    directories |= {name: fact for name, fact in facts.items() if isinstance(fact, Path)}
    is_shard = isinstance(task, ShardTask)
    shard, shards = (task.shard_number, task.shard_count) if is_shard else (0, 1)
    part = "run_shard" if shards > 1 else "merge" if task.shards() else "run"
    context = {
        "config": task.settings.model_dump(mode="json"),
        "stage": task.stage,
        "inputs": {name: str(directory) for name, directory in directories.items()},
        "round": task.round_number,
        "seed": task.settings.seed,
        "shard": shard,
        "shards": shards,
        "key": task.key.values(),
        "facts": {name: fact for name, fact in facts.items() if name not in directories},
    }
    job = StageJob(
        context=context,
        raw_files=task.raw_files(),
        contents=outputs.contents(task),
        entry=task.function(part),
        root=str(task.store.root),
        log=str(task.settings.run_dir / "logs" / f"{task.label}.log"),
        force=task.attempt.forced,
        lock_seconds=LOCK_SECONDS,
        execution=select_execution(task.settings, task.reading()),
        launched=time.time(),
    )
    started = time.monotonic()
    counts = _run(task, job)
    rows = ", ".join(f"{value:,} {name}" for name, value in counts.items())
    notes = read_manifest(task.store.directory(task.key)).get("notes", {})
    found = "; ".join([rows, *task.findings(), *notes.get("warnings", ())])
    say(aligned(task.label, f"done in {time.monotonic() - started:.0f} s: {found}"))


def _run(task: StageTask, job: StageJob) -> dict[str, int]:
    """Run a job to its end, here or on a cluster; returns its row counts."""
    attempt, execution = task.attempt, task.settings.execution

    def started(log: Path) -> None:
        say(aligned(task.label, f"runs (log: {log})"))

    def noted(note: str) -> None:
        say(aligned(task.label, note))

    names = [name for name in job.execution if name.endswith(_MEMORY)]
    lower = f"lower {', '.join(names)}, or " if names else ""
    hint, given = f"{lower}run fewer stages at once (--workers)", environment(attempt.lease)
    if execution.kind == "local":
        server = attempt.fork_server
        server = server if server is not None and server.ready else None
        return run_stage(job, {**os.environ, **given}, hint, started, server=server)
    from pipeline.engine.execution.cluster import run_on_cluster

    return run_on_cluster(
        job, execution, given, hint, started, noted, label=task.label, needs=attempt.needs
    )


def environment(lease: Lease = NO_LEASE) -> dict[str, str]:
    """Environment variables of a stage's process: for Python, and from its lease."""
    extra = {"PYTHONUNBUFFERED": "1", "TOKENIZERS_PARALLELISM": "false", **MALLOC}
    if shipped.INSTALLED:
        # A user's own pipeline.py or tasks/ in the current directory must not hide the package.
        extra["PYTHONSAFEPATH"] = "1"
    return {**extra, **lease.environment()}


def check_output(
    task: StageTask, outputs: Outputs | None = None, *, contents: bool = False
) -> Path:
    """The directory of a task's output, complete or not.

    Raises StoreError when the output is complete and damaged. The message names the files, what
    differs, and the command that makes them again.
    """
    outputs = outputs or Outputs()
    directory = outputs.directory(task)
    if outputs.complete(task) and (found := problems(directory, contents=contents)):
        raise StoreError(
            f"the output of {task.label} is damaged ({directory}: {'; '.join(found)}); "
            f"make it again: {remake_command(task, directory)}"
        )
    return directory


def run_command(task: StageTask, *more: str) -> str:
    """The command that makes the output of the stage, with further options."""
    options = ["--config", str(task.config)]
    for override in task.overrides:
        options += ["--set", override]
    if task.data is not None:
        options += ["--data", task.data]
    return shlex.join(["steep", *task.command, *more, *options])


def remake_command(task: StageTask, directory: Path) -> str:
    """The command that makes the stage's output in ``directory`` again.

    ``--force`` is about the stage that the command names; another output must be removed first.
    """
    if task.stage in task.command:
        return run_command(task, "--force")
    return f"{shlex.join(['rm', '-r', str(directory)])} && {run_command(task)}"


def keep_failure(task: StageTask, exception: BaseException) -> str:
    """Keep the failure, and record it beside the output unless another process runs the stage.

    Returns its message.
    """
    failure = task.attempt.failure = _failure_of(exception)
    if not (isinstance(exception, StageFailed) and exception.busy):
        failure.write(task.store.failure_file(task.key))
    return failure.message


def _failure_of(exception: BaseException) -> FailureRecord:
    """The failure record of a task's exception. The traceback of a bug is printed."""
    if isinstance(exception, StageFailed):
        log = None if exception.log is None else str(exception.log)
        return FailureRecord(exception.cause, exception.exit_status, log)
    if isinstance(exception, SteepError):
        return FailureRecord(str(exception), exception.exit_status)
    if isinstance(exception, OSError):
        return FailureRecord(explain_os_error(exception, "the run's directory"), 2)
    traceback.print_exception(exception)
    return FailureRecord(f"{type(exception).__name__}: {exception}", 1)


def aligned(label: str, text: str) -> str:
    """A stage's label and a text, with the texts of all stages below each other."""
    return f"{label:<20} {text}"


def say(line: str) -> None:
    """Print a line of progress with the time of day.

    A closed output, as behind ``| head``, does not end a run; the end of the command reports it.
    """
    with suppress(OSError, ValueError):
        print(f"{time.strftime('%H:%M:%S')}  {line}\n", end="", flush=True)  # one write: of threads
