"""Stages on a Ray cluster of two nodes with one CPU each, both on this machine.

`tests/torture` ends the nodes of a run.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from pipeline.engine.opened import Needs
from pipeline.engine.run import RunFailed, run
from tests.ray_nodes import Nodes, ray_nodes
from tests.tasks.counting_tasks import Complains, First, task
from tests.tasks.leasing_tasks import Samples, given

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
    monkeypatch.setattr("pipeline.engine.run.needs", lambda *_: Needs())
    stage = Samples(**task(First, workspace, *RAY).param_kwargs, number=0)
    run(stage)
    assert given(stage)["OMP_NUM_THREADS"] == "1"
    assert given(stage)["MKL_NUM_THREADS"] == "1"
    more = task(First, workspace, *RAY[:1], "execution.threads=2")
    with pytest.raises(RunFailed, match="no node has the 0 GPUs and 2 CPU threads of the stage"):
        run(more)
