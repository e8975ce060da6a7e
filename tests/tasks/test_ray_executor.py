"""Stages on a Ray cluster of two nodes with one CPU each, both on this machine."""

from __future__ import annotations

import threading
from collections.abc import Iterator

import psutil
import pytest

from pipeline.engine.opened import Needs
from pipeline.engine.run import RunFailed, run
from tests.ray_nodes import Nodes, process_of, ray_nodes
from tests.tasks.counting_tasks import (
    Complains,
    First,
    InBatches,
    executions,
    task,
)
from tests.tasks.leasing_tasks import Samples, given
from tests.tasks.test_slurm_executor import content
from tests.waiting import wait_until

RAY = ("execution.kind=ray", "execution.threads=1")


@pytest.fixture(scope="module")
def nodes() -> Iterator[Nodes]:
    with ray_nodes(2) as started:
        yield started


@pytest.mark.slow
def test_the_message_of_a_stage_is_that_of_its_task(workspace, nodes) -> None:
    with pytest.raises(RunFailed) as caught:
        run(task(Complains, workspace, *RAY))
    assert caught.value.exit_status == 2
    assert str(caught.value).startswith(
        "complains: questions.jsonl:7: answer is missing; add it (log"
    )


@pytest.mark.slow
def test_a_stage_has_its_threads_and_is_refused_where_no_node_has_as_many(
    workspace, nodes, monkeypatch
) -> None:
    """Each node has one CPU. Ray would wait for a larger node without an end."""
    monkeypatch.setenv("MARKS", str(workspace))
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    monkeypatch.setattr("pipeline.engine.build.needs", lambda *_: Needs())
    stage = Samples(**task(First, workspace, *RAY).param_kwargs, number=0)
    run(stage)
    assert given(stage)["OMP_NUM_THREADS"] == "1"
    assert given(stage)["MKL_NUM_THREADS"] == "1"
    more = task(First, workspace, *RAY[:1], "execution.threads=2")
    with pytest.raises(RunFailed, match="no node has the 0 GPUs and 2 CPU threads of the stage"):
        run(more)


@pytest.mark.slow
def test_a_stage_continues_on_another_node_when_its_own_is_lost(workspace, nodes, capfd) -> None:
    """A node is removed after two of four batches; the output is that of a run without Ray."""
    stage = task(InBatches, workspace, *RAY)
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
