"""Stages on a Ray cluster of two nodes with one CPU each, both on this machine."""

from __future__ import annotations

import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from typing import Any

import psutil
import pytest

from pipeline.run.progress import read_progress
from tasks.needs import Needs
from tasks.run import RunFailed, run
from tests.tasks.counting_tasks import (
    ROOT,
    Complains,
    Ends,
    InBatches,
    executions,
    task,
    wait_until,
)
from tests.tasks.test_slurm_executor import RUN, content

STORE_BYTES = 80_000_000  # of each node's object store; a stage puts nothing into it


def started(start: Callable[[], Any]) -> Any:
    """What ``start`` returns. Ray gives a node 30 seconds, which a loaded machine may exceed."""
    for attempt in range(4):
        try:
            return start()
        except Exception:
            if attempt == 3:
                raise
    raise AssertionError


@pytest.fixture(scope="module")
def cluster() -> Iterator[Any]:
    """A head without CPUs and two nodes with one each."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("RAY_USAGE_STATS_ENABLED", "0")
        patch.setenv("RAY_AUTH_MODE", "disabled")
        from ray.cluster_utils import Cluster

        node = {"object_store_memory": STORE_BYTES, "include_dashboard": False}
        head = {**node, "num_cpus": 0}
        cluster = started(lambda: Cluster(initialize_head=True, head_node_args=head))
        patch.setenv("RAY_ADDRESS", cluster.address)
        for _ in range(2):
            started(lambda: cluster.add_node(num_cpus=1, object_store_memory=STORE_BYTES))
        yield cluster
        cluster.shutdown()


def process_of(stage: Any) -> psutil.Process:
    """The process of a running stage."""
    record = read_progress(stage.store.progress_file(stage.key))
    assert record is not None
    assert record.job.startswith("ray task ")
    return psutil.Process(record.pid)


def node_of(cluster: Any, process: psutil.Process) -> Any:
    """The node whose raylet started a process."""
    above = {parent.pid for parent in process.parents()}
    (found,) = (
        node
        for node in cluster.worker_nodes
        if above & {info.process.pid for info in node.all_processes["raylet"]}
    )
    return found


def test_the_message_of_a_stage_is_that_of_its_task(workspace, cluster) -> None:
    with pytest.raises(RunFailed) as caught:
        run(task(Complains, workspace, "execution=ray"))
    assert caught.value.exit_status == 2
    assert str(caught.value).startswith(
        "complains: questions.jsonl:7: answer is missing; add it (log"
    )


def test_a_stage_killed_for_its_memory_is_not_started_again(workspace, cluster) -> None:
    with pytest.raises(RunFailed, match=r"killed by SIGKILL, probably .*; lower sampling.batch"):
        run(task(Ends, workspace, "name=SIGKILL", "execution=ray"))


def test_a_stage_that_no_node_can_hold_is_refused(workspace, cluster, monkeypatch) -> None:
    monkeypatch.setattr("tasks.build.needs", lambda stage: Needs(gpus=1, threads=7))
    with pytest.raises(RunFailed, match=r"1 node with 1 GPUs and 7 CPU threads needed, and 0 of"):
        run(task(InBatches, workspace, "execution=ray"))


def test_a_killed_run_ends_its_stage(workspace, cluster) -> None:
    stage = task(InBatches, workspace, "execution=ray")
    command = [sys.executable, "-c", RUN, "InBatches", str(workspace), "execution=ray"]
    started = subprocess.Popen(command, cwd=ROOT)
    wait_until(lambda: "batch 1" in executions(workspace), seconds=300)
    process = process_of(stage)
    started.send_signal(signal.SIGKILL)
    started.wait()
    wait_until(lambda: not process.is_running())
    wait_until(lambda: not stage.store.in_use(stage.key))


def test_a_stage_continues_on_another_node_when_its_own_is_lost(workspace, cluster, capfd) -> None:
    """A node is removed after two of four batches; the output is that of a run without Ray."""
    stage = task(InBatches, workspace, "execution=ray")
    lost: list[psutil.Process] = []

    def remove_node() -> None:
        try:
            wait_until(lambda: "batch 1" in executions(workspace), seconds=300)
            lost.append(process_of(stage))
            cluster.remove_node(node_of(cluster, lost[0]), allow_graceful=False)
            wait_until(lambda: not lost[0].is_running())
        finally:
            (workspace / "release").touch()

    remover = threading.Thread(target=remove_node)
    remover.start()
    directory = run(stage)
    remover.join()
    assert lost
    batches = [f"batch {number}" for number in range(4)]
    assert executions(workspace) == ["in-batches", *batches[:2], "in-batches", *batches[2:]]
    told = capfd.readouterr().out
    assert "the node on which it ran was lost; it continues from its checkpoint (start 2)" in told
    here = run(task(InBatches, workspace, f"runs_dir={workspace / 'here'}"))
    assert content(here) == content(directory)
