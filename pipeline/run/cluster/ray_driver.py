"""The driver of one stage on a Ray cluster; see `pipeline.run.cluster.request`.

A stage whose node or worker is lost starts again on another node, where it continues from its checkpoint.
Ray's own retries are switched off, because they would repeat a stage that was killed for its memory without
an end. The end of this process ends its tasks.
"""

from __future__ import annotations

import math
import os
import sys
import time
from dataclasses import asdict
from typing import Any

from pipeline.core.text import one_line
from pipeline.run.cluster.request import Note, Request, Watch, drive, failed
from pipeline.run.remote import RemoteStage, run_remote

_LOOK = 0.5  # seconds between two looks at the stage
_CAUSE_SECONDS = 60.0  # to wait for the first machine when another has failed
_LONGEST = 500  # characters of a message of Ray


def on_node(stage: dict[str, Any], environment: dict[str, str], rank: int, attempt: str) -> Any:
    """The function of the Ray task: the stage, or its machine of number ``rank``."""
    import ray

    context = ray.get_runtime_context()
    os.environ.update(environment)
    return run_remote(
        RemoteStage(**stage),
        context.get_task_id()[:16],
        rank,
        attempt,
        ray.util.get_node_ip_address(),
    )


class Driver:
    """Runs one stage on the cluster to which this process is connected."""

    def __init__(self, ray: Any, request: Request, watch: Watch) -> None:
        self._ray = ray
        self._request = request
        self._watch = watch

    def attempt(self, number: int) -> dict[str, Any]:
        """Run the stage once; returns its outcome. Raises exceptions of Ray for a lost node."""
        ray, request = self._ray, self._request
        self._check_capacity()
        task = ray.remote(on_node).options(
            num_cpus=request.threads,
            num_gpus=request.gpus,
            max_retries=0,
            name=request.label,
            scheduling_strategy=self._strategy(),
        )
        stage, environment = asdict(request.stage), _passed_on(os.environ)
        machines = request.stage.machines
        tasks = []
        for rank in range(machines):
            placed = task if machines == 1 else task.options(scheduling_strategy=self._bundle(rank))
            tasks.append(placed.remote(stage, environment, rank, str(number)))
        first, deadline = tasks[0], math.inf
        failure: dict[str, Any] = {}
        try:
            while True:
                done, _ = ray.wait(tasks, num_returns=1, timeout=_LOOK)
                for finished in done:
                    outcome: dict[str, Any] = ray.get(finished)
                    if finished == first:
                        return outcome
                    tasks.remove(finished)
                    if outcome and not failure:  # the first machine fails next, and knows the cause
                        failure, deadline = outcome, time.monotonic() + _CAUSE_SECONDS
                if time.monotonic() > deadline:
                    return failure
                reason = self._watch.look()
                if reason is not None:
                    return {"status": 2, "message": reason, "busy": False, "log": None}
        finally:
            self._watch.look()
            self._watch.attempt_ended()
            for running in tasks:
                ray.cancel(running, force=True)
            self._remove_group()

    def _strategy(self) -> Any:
        """Where the tasks run: anywhere, or each on a node of its own for training on several machines."""
        self._group = None
        if self._request.stage.machines == 1:
            return "DEFAULT"
        from ray.util.placement_group import placement_group

        bundle = {"CPU": float(self._request.threads)}
        if self._request.gpus:
            bundle["GPU"] = float(self._request.gpus)
        self._group = placement_group(
            [bundle] * self._request.stage.machines, strategy="STRICT_SPREAD"
        )
        self._ray.get(self._group.ready())
        return self._bundle(0)

    def _bundle(self, rank: int) -> Any:
        from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

        return PlacementGroupSchedulingStrategy(
            placement_group=self._group, placement_group_bundle_index=rank
        )

    def _remove_group(self) -> None:
        if self._group is not None:
            from ray.util.placement_group import remove_placement_group

            remove_placement_group(self._group)

    def _check_capacity(self) -> None:
        """Raise ValueError when the nodes of the cluster are too few or too small, so that it would wait for ever."""
        need = {"CPU": self._request.threads, "GPU": self._request.gpus}
        nodes = [node["Resources"] for node in self._ray.nodes() if node["Alive"]]
        large = [
            node
            for node in nodes
            if all(node.get(name, 0) >= count for name, count in need.items())
        ]
        machines = self._request.stage.machines
        if len(large) < machines:
            most = {
                name: int(max((node.get(name, 0) for node in nodes), default=0)) for name in need
            }
            raise ValueError(
                f"{machines} node{'s' * (machines > 1)} with {need['GPU']} GPUs and {need['CPU']} CPU threads "
                f"needed, and {len(large)} of the Ray cluster's {len(nodes)} nodes have that (the largest numbers "
                f"are {most['GPU']} GPUs and {most['CPU']} CPUs); add nodes, or lower what the stage needs"
            )


def run(request: Request, watch: Watch, note: Note) -> dict[str, Any]:
    """Connect to the cluster and run the stage, again after a loss; returns its outcome."""
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    import ray
    from ray import exceptions as lost

    address, retries = request.settings["address"], request.settings["retries"]
    try:
        ray.init(address=address, log_to_driver=False, logging_level="error")
    except (ConnectionError, RuntimeError, ValueError) as error:
        return failed(
            f"the Ray cluster at {address} cannot be used: {one_line(str(error), _LONGEST)}; nodes and this machine "
            "need the same versions of Python and Ray"
        )
    driver = Driver(ray, request, watch)
    for number in range(retries + 1):
        try:
            return driver.attempt(number)
        except ValueError as error:
            return failed(str(error))
        except lost.OutOfMemoryError:
            return failed(
                f"Ray ended it because the memory of its node ran out; {request.stage.memory_hint}",
                1,
            )
        except (lost.NodeDiedError, lost.WorkerCrashedError, lost.LocalRayletDiedError) as error:
            kind = "node" if isinstance(error, lost.NodeDiedError) else "worker"
            last = f"the {kind} on which it ran was lost"
            if number < retries:
                note(f"{last}; it continues from its checkpoint (start {number + 2})")
        except lost.RayTaskError as error:
            return failed(one_line(str(error.cause or error), _LONGEST), 1)
        except lost.RayError as error:
            return failed(one_line(str(error), _LONGEST), 1)
    return failed(
        f"{last}, {retries + 1} times in all; see `ray status`, then run the command again, and the stage "
        "continues from its last checkpoint",
        1,
    )


def _passed_on(environment: Any) -> dict[str, str]:
    """The variables of this process that the stage gets on its node; those of the node's Ray stay."""
    own = ("RAY_", "CUDA_VISIBLE", "SLURM_", "HOSTNAME", "PWD", "OLDPWD", "TMPDIR", "STEEP_PARENT")
    return {name: value for name, value in environment.items() if not name.startswith(own)}


if __name__ == "__main__":
    sys.exit(drive(run))
