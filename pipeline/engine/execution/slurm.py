"""The driver of a stage as a Slurm job of submitit, which it cancels when the run ends.

A job that reaches its time limit or is preempted is queued again, and the stage continues from its
checkpoint. ``squeue`` tells the state of a job on every cluster. To wait by submitit's own
``job.result`` was tried: it asks ``sacct``, and on a cluster without Slurm's accounting a cancelled
job then kept the run waiting (docs/log/2026-11.md#slurm).
"""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

import submitit
from submitit.core.utils import UncompletedJobError
from submitit.helpers import Checkpointable

from pipeline.core.text import one_line
from pipeline.engine.execution.cluster import AGAIN, Request, Watch, drive, failed, run_here

_LOOK = 0.2  # seconds between two looks for the result
_ASK = 30.0  # seconds between two questions to Slurm, which are costly
_LONGEST = 500  # characters of a message of Slurm
_LOCAL_MINUTES = 365 * 24 * 60  # submitit's local executor polls its limit away: it must be large
_MINUTES = 1440  # limit of a job without the directive --time
_SIGNAL_SECONDS = 120  # before the time limit, to end the stage and queue it again
_GONE = "GONE"  # a state of ours: squeue does not know the job
# States of Slurm, and of submitit's local jobs, in which a job has ended.
_ENDED = frozenset(
    ("BOOT_FAIL", "CANCELLED", "COMPLETED", "DEADLINE", "FAILED", "NODE_FAIL", "OUT_OF_MEMORY",
     "PREEMPTED", "REVOKED", "TIMEOUT", "FINISHED", "INTERRUPTED", _GONE)
)  # fmt: skip
_REMEDIES = {
    "TIMEOUT": "raise --time in execution.slurm.directives",
    "OUT_OF_MEMORY": "raise --mem-per-cpu in execution.slurm.directives, or {}",
}


class StageCall(Checkpointable):
    """The function of a job: submitit queues it again at the time limit.

    The checkpoints of the stage are in the store.
    """

    def __call__(self, request: Request) -> dict[str, Any]:
        return run_here(request, submitit.JobEnvironment().job_id)


def parameters(request: Request) -> dict[str, Any]:
    """The parameters of submitit's AutoExecutor for a stage; None: left to the cluster."""
    directives = request.slurm["directives"]
    more = [directive.removeprefix("--").partition("=") for directive in directives]
    return {
        "name": f"steep-{request.label}",
        "gpus_per_node": request.gpus or None,  # clusters without GPUs do not know the directive
        "cpus_per_task": request.threads,
        "stderr_to_stdout": True,
        "timeout_min": _LOCAL_MINUTES,
        "slurm_time": _MINUTES,
        "slurm_ntasks_per_node": 1,
        "slurm_signal_delay_s": _SIGNAL_SECONDS,
        # Since Slurm 22.05 srun does not take the number of CPUs from its job.
        "slurm_srun_args": [f"--cpus-per-task={request.threads}"],
        "slurm_additional_parameters": {
            "requeue": True,
            **{name: value if equals else True for name, equals, value in more},
        },
    }


def run(request: Request, watch: Watch) -> dict[str, Any]:
    """Submit the stage, wait, and return its outcome; SIGTERM and SIGINT cancel the job."""
    signals: list[int] = []
    for each in (signal.SIGTERM, signal.SIGINT):  # a shell in the background ignores SIGINT
        signal.signal(each, lambda number, frame: signals.append(number))
    folder, cluster = Path(request.folder) / "%j", request.slurm["cluster"]
    try:
        queue = submitit.AutoExecutor(folder=folder, cluster=cluster)
        queue.update_parameters(**parameters(request))
        job = queue.submit(StageCall(), request)
    except (RuntimeError, OSError, subprocess.SubprocessError) as error:
        return failed(
            f"the job could not be submitted: {one_line(str(error), _LONGEST)}; run on a machine "
            "with sbatch and srun, and check the numbers of CPU threads in execution and the block "
            "execution.slurm"
        )
    watch.note(f"submitted as {request.name} {job.job_id}")
    try:
        return _outcome(job, request, watch, signals)
    finally:
        if not job.paths.result_pickle.exists():
            with suppress(OSError):
                job.cancel(check=False)


def _outcome(job: Any, request: Request, watch: Watch, signals: list[int]) -> dict[str, Any]:
    """Wait for the result of the job, or for its end without one."""
    name = f"{request.name} {job.job_id}"
    here = request.slurm["cluster"] == "local"
    asked, ended, told = time.monotonic(), "", ""
    while not job.paths.result_pickle.exists():
        if signals:
            return failed("interrupted", 128 + signals[0])
        watch.look()
        if time.monotonic() - asked >= (_LOOK if here else _ASK):
            state, reason = (job.state, "") if here else queue_state(job)
            if reason not in ("", told):
                watch.note(f"{name} waits in the queue: {reason}")
                told = reason
            if state in _ENDED and state == ended:  # seen twice: it is not about to be queued again
                remedy = _REMEDIES.get(state, AGAIN).format(request.memory_hint)
                output = job.paths.stdout
                return failed(f"{name} ended without a result ({state}; see {output}); {remedy}", 1)
            asked, ended = time.monotonic(), state
        time.sleep(_LOOK)
    try:
        outcome: dict[str, Any] = job.result()
    except UncompletedJobError as error:  # an exception of the job, with submitit's words around it
        lines = [line for line in str(error).splitlines() if "rror" in line and "/" not in line]
        cause = one_line(lines[-1] if lines else str(error), _LONGEST)
        return failed(f"{name} failed: {cause} (see {job.paths.stdout}); {AGAIN}", 1)
    return outcome


def queue_state(job: Any) -> tuple[str, str]:
    """State of a Slurm job, such as ``RUNNING``, and why it waits; empty if Slurm is silent."""
    command = ["squeue", "--noheader", "--states=all", "--format=%T|%r", f"--jobs={job.job_id}"]
    try:
        told = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return "", ""
    if told.returncode and "Invalid job id" not in told.stderr:
        return "", ""
    state, _, reason = told.stdout.partition("\n")[0].strip().partition("|")
    return state or _GONE, reason if state == "PENDING" and reason != "None" else ""


if __name__ == "__main__":
    sys.exit(drive(run))
