"""Ray clusters of several nodes on this machine, whose nodes can be lost."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psutil
import pytest

from pipeline.engine.progress import read_progress

STORE_BYTES = 80_000_000  # of each node's object store; a stage puts nothing into it


class Nodes:
    """A head without CPUs, and nodes with ``cpus`` each."""

    def __init__(self, cpus: int) -> None:
        from ray.cluster_utils import Cluster

        head = {"object_store_memory": STORE_BYTES, "include_dashboard": False, "num_cpus": 0}
        self._cpus = cpus
        self._cluster = _patiently(lambda: Cluster(initialize_head=True, head_node_args=head))

    @property
    def address(self) -> str:
        return str(self._cluster.address)

    def add(self) -> None:
        """Start one more node, which joins the cluster."""
        _patiently(
            lambda: self._cluster.add_node(num_cpus=self._cpus, object_store_memory=STORE_BYTES)
        )

    def lose_node_of(self, process: psutil.Process) -> None:
        """End the node on which ``process`` runs, without a farewell to the cluster.

        Raises psutil.NoSuchProcess when it has ended.
        """
        above = {parent.pid for parent in process.parents()}
        for node in self._cluster.worker_nodes:
            if above & {info.process.pid for info in node.all_processes["raylet"]}:
                self._cluster.remove_node(node, allow_graceful=False)
                return
        raise psutil.NoSuchProcess(process.pid)

    def end(self) -> None:
        self._cluster.shutdown()


@contextmanager
def ray_nodes(count: int, cpus: int = 1) -> Iterator[Nodes]:
    """A cluster of ``count`` nodes, to which ``RAY_ADDRESS`` points, for the time of the block."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("RAY_USAGE_STATS_ENABLED", "0")
        patch.setenv("RAY_AUTH_MODE", "disabled")
        patch.setenv(
            "RAY_worker_niceness", "0"
        )  # 15 by default, with which a loaded machine starves them
        nodes = Nodes(cpus)
        try:
            patch.setenv("RAY_ADDRESS", nodes.address)
            for _ in range(count):
                nodes.add()
            yield nodes
        finally:
            nodes.end()


def process_of(record_path: Path) -> psutil.Process:
    """The process of a running stage, by its record of progress."""
    record = read_progress(record_path)
    if record is None:
        raise psutil.NoSuchProcess(os.getpid(), msg=f"{record_path} is not there")
    assert record.job.startswith("ray "), record.job
    return psutil.Process(record.pid)


def _patiently(start: Callable[[], Any]) -> Any:
    """What ``start`` returns. Ray gives a node 30 seconds, which a loaded machine may exceed."""
    for attempt in range(4):
        try:
            return start()
        except Exception:
            if attempt == 3:
                raise
    raise AssertionError
