"""The driver of a stage on a Ray cluster: the stage is a Ray task with its GPUs and CPU threads.

Ray starts the task again on another node when its node or worker is lost (``max_retries``), and
ends it when this process ends. Ray stands above the engines and is never vLLM's distributed
executor.
"""

from __future__ import annotations

import os
import sys
from dataclasses import replace
from typing import Any

from pipeline.core.text import one_line
from pipeline.engine.execution.cluster import AGAIN, Request, Watch, drive, failed, run_here

_LOOK = 0.5  # seconds between two looks at the stage
_LONGEST = 500  # characters of a message of Ray
_NEW_STARTS = 3  # of a stage whose node or worker was lost: a fourth loss has another cause
# A stage does not get these variables of this process: it keeps its node's values.
_OWN = ("RAY_", "CUDA_VISIBLE", "SLURM_", "HOSTNAME", "PWD", "OLDPWD", "TMPDIR", "STEEP_PARENT")


def on_node(request: Request, environment: dict[str, str]) -> dict[str, Any]:
    """The function of the Ray task."""
    import ray

    os.environ.update(environment)
    return run_here(request, ray.get_runtime_context().get_task_id()[:16])


def run(request: Request, watch: Watch) -> dict[str, Any]:
    """Connect to the cluster and run the stage; returns its outcome."""
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    os.environ["RAY_task_oom_retries"] = "0"  # noqa: SIM112 - by default without an end
    import ray
    from ray import exceptions as lost

    try:  # the cluster of RAY_ADDRESS, else the one on this machine
        ray.init(address="auto", log_to_driver=False, logging_level="error")
    except (ConnectionError, RuntimeError, ValueError) as error:
        return failed(
            f"the Ray cluster cannot be used: {one_line(str(error), _LONGEST)}; start one (ray "
            "start --head); its nodes and this machine need the same versions of Python and Ray"
        )
    nodes = [node["Resources"] for node in ray.nodes() if node["Alive"]]
    if request.gpus and not any(node.get("GPU") for node in nodes):
        watch.note("no node of the Ray cluster has a GPU; it runs on CPUs")
        request = replace(request, gpus=0)
    asked = {"GPU": request.gpus, "CPU": request.threads}
    if not any(all(node.get(kind, 0) >= asked[kind] for kind in asked) for node in nodes):
        return failed(  # Ray would wait for such a node
            f"no node has the {request.gpus} GPUs and {request.threads} CPU threads of the stage, "
            f"and the Ray cluster has {nodes}; add nodes, or lower execution.threads"
        )
    environment = {name: value for name, value in os.environ.items() if not name.startswith(_OWN)}
    task = ray.remote(on_node).options(
        num_cpus=request.threads,
        num_gpus=request.gpus,
        max_retries=_NEW_STARTS,
        name=request.label,
    )
    stage = task.remote(request, environment)
    while not ray.wait([stage], timeout=_LOOK)[0]:
        watch.look()
    try:
        outcome: dict[str, Any] = ray.get(stage)
    except lost.OutOfMemoryError:
        return failed(
            f"Ray ended it because the memory of its node ran out; {request.memory_hint}", 1
        )
    except lost.RayError as error:  # the last of its starts
        cause = one_line(str(getattr(error, "cause", None) or error), _LONGEST)
        return failed(f"{cause}; see `ray status`; {AGAIN}", 1)
    return outcome


if __name__ == "__main__":
    sys.exit(drive(run))
