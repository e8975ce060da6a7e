"""What Slurm tells of a job: its state, and why it waits.

``squeue`` asks the controller and works on every cluster. ``sacct``, which submitit asks, needs Slurm's accounting,
which not every cluster has; it is asked for jobs that the controller has forgotten, some minutes after their end.
"""

from __future__ import annotations

import subprocess
from typing import Any

FORGOTTEN = "FORGOTTEN"  # a state of ours: neither squeue nor sacct knows the job
_SECONDS = 60.0
_UNKNOWN_JOB = "Invalid job id"
# Reasons with which a job does not start until the request or the cluster changes.
_STAYS = {
    "AccountNotAllowed": "set execution.slurm.account",
    "AssocGrpNodeLimit": "your account allows fewer machines",
    "BadConstraints": "no node has what it asks for; lower the GPUs, the CPU threads or execution.slurm.memory",
    "InvalidAccount": "set execution.slurm.account",
    "InvalidQOS": "set --qos in execution.slurm.extra",
    "JobHeldAdmin": "it is held; ask the administrators",
    "JobHeldUser": "it is held; release it with scontrol release",
    "PartitionConfig": "no node of the partition has what it asks for; lower the GPUs, the CPU threads "
    "(execution.threads_per_gpu, execution.threads_without_gpu) or execution.slurm.memory",
    "PartitionNodeLimit": "the partition allows fewer machines; name another in execution.slurm.partition",
    "PartitionTimeLimit": "lower execution.slurm.time to what the partition allows",
}


def queue_state(job: Any) -> tuple[str, str]:
    """State of a job of submitit, such as ``RUNNING``, and why it waits, which is empty when it does not.

    The state is `FORGOTTEN` for a job that Slurm does not know, and empty when Slurm does not answer.
    """
    command = ["squeue", "--noheader", "--states=all", "--format=%T|%r", f"--jobs={job.job_id}"]
    try:
        told = subprocess.run(
            command, capture_output=True, text=True, timeout=_SECONDS, check=False
        )
    except (OSError, subprocess.TimeoutExpired):
        return "", ""
    if told.returncode and _UNKNOWN_JOB not in told.stderr:
        return "", ""
    line = told.stdout.partition("\n")[0].strip()
    if told.returncode or not line:
        return str(job.get_info(mode="force").get("State") or FORGOTTEN), ""
    state, _, reason = line.partition("|")
    return state, reason if state == "PENDING" and reason != "None" else ""


def explain_reason(reason: str) -> str:
    """A reason of Slurm with what to do, where the job would wait forever."""
    remedy = _STAYS.get(reason)
    return f"{reason} ({remedy})" if remedy else reason
