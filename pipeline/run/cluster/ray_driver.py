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
from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from typing import Any

from pipeline.core.text import one_line
from pipeline.run.cluster import ray_slots
from pipeline.run.cluster.request import Note, Request, Watch, drive, end_at_signals, failed
from pipeline.run.remote import RemoteStage, run_remote

_LOOK = 0.5  # seconds between two looks at the stage
_ROOM_SECONDS = 15.0  # that a task waits for its resources before unused slots make room
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
        self._slots = ray.get_actor(ray_slots.NAME, namespace=request.settings["slots"])

    def attempt(self, number: int) -> dict[str, Any]:
        """Run the stage once; returns its outcome. Raises exceptions of Ray for a lost node."""
        self._check_capacity()
        try:
            if self._request.settings["serves"] is not None:
                return self._in_slot(number)
            return self._as_tasks(number)
        finally:
            self._watch.look()
            self._watch.attempt_ended()

    def _in_slot(self, number: int) -> dict[str, Any]:
        """Run the stage in a slot, where its engine may be open from an earlier stage."""
        ray, request, kept = self._ray, self._request, False
        namespace, driver = request.settings["slots"], ray.get_runtime_context().get_job_id()
        asked = driver, request.gpus, request.threads, request.settings["serves"]
        while (name := ray.get(self._slots.acquire.remote(*asked))) is None:
            time.sleep(_LOOK)
        try:
            try:
                slot = ray.get_actor(name, namespace=namespace)
            except ValueError:  # its node was lost a moment ago
                raise ray.exceptions.ActorDiedError from None
            task = slot.run.remote(asdict(request.stage), _passed_on(os.environ), str(number))
            outcome = self._outcome([task])
            kept = self._ended
            return outcome
        finally:  # a slot with a stage that has not ended is lost
            ray.get(self._slots.release.remote(name, kept))

    def _as_tasks(self, number: int) -> dict[str, Any]:
        """Run the stage as a task, or as one on each of its machines."""
        ray, request = self._ray, self._request
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
        try:
            return self._outcome(tasks)
        finally:
            for running in tasks:
                ray.cancel(running, force=True)
            self._remove_group()

    def _outcome(self, tasks: list[Any]) -> dict[str, Any]:
        """The outcome of the first machine's task, or the reason why the stage must end.

        Removes the tasks of other machines that have ended. ``_ended`` is whether the first one has.
        """
        ray, self._ended = self._ray, False
        first, deadline, failure = tasks[0], math.inf, dict[str, Any]()
        asked = time.monotonic()
        while True:
            done, _ = ray.wait(tasks, num_returns=1, timeout=_LOOK)
            for finished in done:
                outcome: dict[str, Any] = ray.get(finished)
                if finished == first:
                    self._ended = True
                    return outcome
                tasks.remove(finished)
                if outcome and not failure:  # the first machine fails next, and knows the cause
                    failure, deadline = outcome, time.monotonic() + _CAUSE_SECONDS
            if time.monotonic() > deadline:
                return failure
            reason = self._watch.look()
            if reason is not None:
                return {"status": 2, "message": reason, "busy": False, "log": None}
            if not self._watch.placed and time.monotonic() - asked > _ROOM_SECONDS:
                self._slots.make_room.remote()
                asked = time.monotonic()

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
        while not self._ray.wait([self._group.ready()], timeout=_ROOM_SECONDS)[0]:
            self._slots.make_room.remote()
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
        nodes = [node["Resources"] for node in _nodes(self._ray)]
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
    end_at_signals()  # Ray has set its own handlers
    if request.gpus and not any(node["Resources"].get("GPU") for node in _nodes(ray)):
        note("no node of the Ray cluster has a GPU; it runs on CPUs")
        request = replace(request, gpus=0, threads=request.threads_without_gpu)
    driver = Driver(ray, request.with_threads(_share(request.gpus, _nodes(ray)), note), watch)
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
        except (
            lost.NodeDiedError,
            lost.WorkerCrashedError,
            lost.LocalRayletDiedError,
            lost.ActorDiedError,
            lost.ActorUnavailableError,
        ) as error:
            worker = isinstance(error, lost.WorkerCrashedError | lost.LocalRayletDiedError)
            kind = "worker" if worker else "node"
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


def _share(gpus: int, nodes: Sequence[Mapping[str, Any]]) -> int:
    """The most CPUs of a node that a stage with ``gpus`` takes there, so that stages can use all of its GPUs at once."""
    resources = [node["Resources"] for node in nodes]
    if not gpus:
        return int(max((node.get("CPU", 0) for node in resources), default=0))
    large = [node for node in resources if node.get("GPU", 0) >= gpus]
    return int(max((node.get("CPU", 0) * gpus / node["GPU"] for node in large), default=0))


def _nodes(ray: Any) -> list[dict[str, Any]]:
    """The nodes of the cluster that are alive."""
    return [node for node in ray.nodes() if node["Alive"]]


def _passed_on(environment: Any) -> dict[str, str]:
    """The variables of this process that the stage gets on its node; those of the node's Ray stay."""
    own = ("RAY_", "CUDA_VISIBLE", "SLURM_", "HOSTNAME", "PWD", "OLDPWD", "TMPDIR", "STEEP_PARENT")
    return {name: value for name, value in environment.items() if not name.startswith(own)}


if __name__ == "__main__":
    sys.exit(drive(run))
