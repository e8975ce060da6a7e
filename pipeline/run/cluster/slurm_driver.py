"""The driver of one stage as a Slurm job; see `pipeline.run.cluster.request`.

A job that reaches its time limit or is preempted is queued again, and the stage continues from its checkpoint.
The end of this process cancels the job.
"""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from pipeline.core.text import one_line
from pipeline.run.cluster.request import Note, Request, Watch, drive, failed, signals_delayed
from pipeline.run.cluster.slurm_queue import FORGOTTEN, explain_reason, queue_state
from pipeline.run.remote import RemoteStage, run_remote

_LOOK = 0.2  # seconds between two looks for the result
_ASK = 30.0  # seconds between two questions to Slurm, which are costly
_LONGEST = 500  # characters of a message of Slurm
_LOCAL_MINUTES = 365 * 24 * 60  # submitit's local executor polls its limit away: it must be large
_SIGNAL_SECONDS = 120  # before the time limit, to end the stage and queue it again

_AGAIN = "run the command again, and the stage continues from its last checkpoint"
# States of Slurm in which a job has ended without a result, with cause and remedy.
_STATES = {
    "TIMEOUT": ("reached its time limit", f"raise execution.slurm.time, then {_AGAIN}"),
    "DEADLINE": ("reached its deadline", f"move it, then {_AGAIN}"),
    "NODE_FAIL": ("lost its node", _AGAIN),
    "BOOT_FAIL": ("got a node that did not start", _AGAIN),
    "CANCELLED": ("was cancelled", _AGAIN),
    "PREEMPTED": ("was preempted and is not queued again", _AGAIN),
    "REVOKED": ("was revoked by the federation", _AGAIN),
    FORGOTTEN: ("has left the queue without a result", _AGAIN),
}


class StageCall:
    """The callable of a job: runs the stage, and is queued again at the time limit."""

    def __init__(self, stage: RemoteStage) -> None:
        self.stage = stage

    def __call__(self) -> dict[str, Any]:
        import submitit

        job = submitit.JobEnvironment()
        restart = os.environ.get("SLURM_RESTART_COUNT", "0")
        return run_remote(self.stage, job.job_id, job.global_rank, restart, job.hostname)

    def checkpoint(self) -> Any:
        """Called at the signal before the time limit; the stage's checkpoints are in the store."""
        from submitit.helpers import DelayedSubmission

        return DelayedSubmission(StageCall(self.stage))


def parameters(request: Request) -> dict[str, Any]:
    """The parameters of submitit's AutoExecutor for a stage."""
    settings, machines = request.settings, request.stage.machines
    shared: dict[str, Any] = {
        "name": f"steep-{request.label}",
        "gpus_per_node": request.gpus,
        "cpus_per_task": request.threads,
        "stderr_to_stdout": True,
    }
    if settings["cluster"] == "local":  # one machine: its tasks stand for machines
        return shared | {"tasks_per_node": machines, "timeout_min": _LOCAL_MINUTES}
    shared |= {"nodes": machines, "tasks_per_node": 1, "timeout_min": settings["time"]}
    if not request.gpus:
        del shared["gpus_per_node"]  # clusters without GPUs do not know the directive
    if settings["memory"] is not None:
        shared["mem_gb"] = settings["memory"]
    extra: dict[str, Any] = {"requeue": True}
    for directive in settings["extra"]:
        name, equals, value = directive.removeprefix("--").partition("=")
        extra[name] = value if equals else True
    own = {
        # Since Slurm 22.05 srun does not take the number of CPUs from its job.
        "slurm_srun_args": [f"--cpus-per-task={request.threads}", *settings["srun_args"]],
        "slurm_partition": settings["partition"],
        "slurm_account": settings["account"],
        "slurm_signal_delay_s": _SIGNAL_SECONDS,
        "slurm_additional_parameters": extra,
    }
    return shared | {name: value for name, value in own.items() if value is not None}


def executor(request: Request) -> Any:
    """submitit's executor for a stage. Raises RuntimeError without Slurm's commands."""
    import submitit

    settings = request.settings
    queue = submitit.AutoExecutor(
        folder=Path(request.stage.folder) / "%j",
        cluster=settings["cluster"],
        slurm_max_num_timeout=settings["requeues"],
        local_max_num_timeout=settings["requeues"],
    )
    queue.update_parameters(**parameters(request))
    return queue


def run(request: Request, watch: Watch, note: Note) -> dict[str, Any]:
    """Submit the stage and wait for its end; returns its outcome. Cancels the job on the way out."""
    job, ended = None, False
    local = request.settings["cluster"] == "local"
    request = request.with_threads(len(os.sched_getaffinity(0)) if local else request.threads, note)
    try:
        try:
            with signals_delayed():
                job = executor(request).submit(StageCall(request.stage))
        except (RuntimeError, OSError, subprocess.SubprocessError) as error:
            return failed(
                f"the job could not be submitted: {one_line(str(error), _LONGEST)}; run on a machine with sbatch "
                "and srun, and check the numbers of CPU threads in execution and the block execution.slurm"
            )
        note(f"submitted as {request.stage.name} {job.job_id}")
        ended, outcome = _wait(job, request, watch, note)
        return outcome
    finally:
        if job is not None and not ended:
            with contextlib.suppress(OSError, subprocess.SubprocessError):
                job.cancel(check=False)


def _wait(job: Any, request: Request, watch: Watch, note: Note) -> tuple[bool, dict[str, Any]]:
    """Whether the job has ended, and its outcome."""
    from submitit.core.utils import UncompletedJobError

    machines = request.stage.machines
    first = job if machines == 1 else job.task(0)
    slurm = request.settings["cluster"] == "slurm"
    interval = _ASK if slurm else _LOOK
    asked, earlier, waits = time.monotonic(), None, ""
    while not first.paths.result_pickle.exists():
        reason = watch.look()
        if reason is not None:
            return False, failed(reason)
        now = time.monotonic()
        if now - asked >= interval:
            state, why = queue_state(job) if slurm else (_local_state(job), "")
            if why not in ("", waits):
                note(f"{request.stage.name} {job.job_id} waits in the queue: {explain_reason(why)}")
                waits = why
            failure = _explain_state(state, job, request)
            if failure is not None and failure == earlier:  # it may be about to be queued again
                return True, failure
            asked, earlier = now, failure
        time.sleep(_LOOK)
    watch.look()
    try:
        outcome: dict[str, Any] = first.result()
    except UncompletedJobError as error:
        return True, failed(_explain_error(str(error), job, request), 1)
    return machines == 1, outcome  # the tasks of other machines may still end


def _local_state(job: Any) -> str:
    return str(job.get_info(mode="force").get("State") or job.state)


def _explain_error(text: str, job: Any, request: Request) -> str:
    """The sentence for an exception of the job, as submitit tells it."""
    name = f"{request.stage.name} {job.job_id}"
    if "timed-out too many times" in text:
        cause, remedy = _STATES["TIMEOUT"]
        return f"{name} {cause} {request.settings['requeues'] + 1} times; {remedy}"
    lines = [line for line in text.splitlines() if line.strip() and not line.startswith("----")]
    told = next((line for line in reversed(lines) if "rror" in line and "/" not in line), text)
    return f"{name} failed: {one_line(told, _LONGEST)} (see {first_output(job)})"


def first_output(job: Any) -> Path:
    """The file with what the job printed outside the stage's log."""
    return Path((job if job.num_tasks == 1 else job.task(0)).paths.stdout)


def _explain_state(state: str, job: Any, request: Request) -> dict[str, Any] | None:
    """The outcome that a state of Slurm means; None while the job may still give a result."""
    name = f"{request.stage.name} {job.job_id}"
    word = state.split()[0].rstrip("+") if state.split() else ""
    if word == "OUT_OF_MEMORY":
        hint = f"raise execution.slurm.memory, or {request.stage.memory_hint}"
        return failed(f"{name} was killed because its memory ran out; {hint}", 1)
    if word in _STATES:
        cause, remedy = _STATES[word]
        return failed(f"{name} {cause}; {remedy}", 1)
    if word in ("FAILED", "FINISHED", "INTERRUPTED", "COMPLETED"):
        return failed(f"{name} ended without a result (see {first_output(job)}); {_AGAIN}", 1)
    return None


if __name__ == "__main__":
    sys.exit(drive(run))
