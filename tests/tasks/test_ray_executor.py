"""Stages on a Ray cluster of two nodes with one CPU each, both on this machine."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from dataclasses import replace

import psutil
import pytest

from tasks.execution.ray import cpus_for
from tasks.opened import Needs
from tasks.run import RunFailed, run
from tests.ray_nodes import Nodes, process_of, ray_nodes
from tests.tasks.counting_tasks import (
    Complains,
    First,
    InBatches,
    executions,
    task,
)
from tests.tasks.leasing_tasks import Samples, given
from tests.tasks.test_slurm_executor import content, request
from tests.waiting import wait_until


@pytest.fixture(scope="module")
def nodes() -> Iterator[Nodes]:
    with ray_nodes(2) as started:
        yield started


@pytest.mark.slow
def test_the_message_of_a_stage_is_that_of_its_task(workspace, nodes) -> None:
    with pytest.raises(RunFailed) as caught:
        run(task(Complains, workspace, "execution=ray"))
    assert caught.value.exit_status == 2
    assert str(caught.value).startswith(
        "complains: questions.jsonl:7: answer is missing; add it (log"
    )


@pytest.mark.slow
def test_a_stage_gets_no_more_cpu_threads_than_a_node_has(workspace, nodes, monkeypatch) -> None:
    """By default it asks for 8, and each node has one."""
    monkeypatch.setenv("MARKS", str(workspace))
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    monkeypatch.setattr("tasks.build.needs", lambda *_: Needs())
    stage = Samples(**task(First, workspace, "execution=ray").param_kwargs, number=0)
    run(stage)
    assert given(stage)["OMP_NUM_THREADS"] == "1"
    assert given(stage)["MKL_NUM_THREADS"] == "1"


def test_stages_share_the_cpus_of_a_node_by_its_gpus() -> None:
    nodes = [{"CPU": 4.0}, {"CPU": 24.0, "GPU": 8.0}, {"CPU": 64.0, "GPU": 4.0}]

    def most(gpus: int, processes: int = 1) -> int | None:
        return cpus_for(replace(request(), gpus=gpus, processes=processes), nodes)

    assert [most(gpus) for gpus in (0, 1, 4, 8, 9)] == [64, 16, 64, 24, None]
    assert most(0, processes=65) is None


@pytest.mark.slow
def test_a_stage_continues_on_another_node_when_its_own_is_lost(workspace, nodes, capfd) -> None:
    """A node is removed after two of four batches; the output is that of a run without Ray."""
    stage = task(InBatches, workspace, "execution=ray")
    lost: list[psutil.Process] = []

    def remove_node() -> None:
        try:
            wait_until(lambda: "batch 1" in executions(workspace))
            lost.append(process_of(stage.store.progress_file(stage.key)))
            nodes.lose_node_of(lost[0])
            wait_until(lambda: not lost[0].is_running())
        finally:
            (workspace / "release").touch()

    remover = threading.Thread(target=remove_node)
    remover.start()
    directory = run(stage)
    remover.join()
    nodes.add()
    assert lost
    batches = [f"batch {number}" for number in range(4)]
    assert executions(workspace) == ["in-batches", *batches[:2], "in-batches", *batches[2:]]
    told = capfd.readouterr().out
    assert ", from its checkpoint (start 2)" in told
    here = run(task(InBatches, workspace, f"runs_dir={workspace / 'here'}"))
    assert content(here) == content(directory)
