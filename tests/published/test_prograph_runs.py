"""ProGraph-R1's published configurations on stand-ins, from the raw files to the report.

The run of the 3B model has vLLM's multi-process engine, as on GPUs.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest

from tests.llm.marked_processes import left_after, marked
from tests.published.runs import StandInRun
from tests.published.whole_runs import check_run, output

pytestmark = pytest.mark.timeout(1800)
MARK = "STEEP_TEST_STAND_IN_RUN"
ENGINE = "VLLM::EngineCore"


@contextmanager
def watched(mark: str) -> Iterator[set[str]]:
    """The names of the processes with ``mark`` in their environment, looked up every two seconds."""
    names: set[str] = set()
    done = threading.Event()

    def watch() -> None:
        while not done.wait(2):
            names.update(marked(mark).values())

    thread = threading.Thread(target=watch, daemon=True)
    thread.start()
    try:
        yield names
    finally:
        done.set()
        thread.join()


def finish(run: StandInRun) -> set[str]:
    """Run everything and check the results; returns the names of the processes that it had."""
    with watched(f"{MARK}={run.name}") as names:
        messages = run.finish(**{MARK: run.name})
    check_run(run, messages)
    assert run.counts("hypergraph")["hyperedges"] > 0
    assert run.counts("train")["paths"] > 0
    return names


@pytest.mark.slow
def test_the_configuration_runs_whole_on_stand_ins(new_run: Callable[[str], StandInRun]) -> None:
    names = finish(new_run("prograph-qwen2.5-7b"))
    assert not [name for name in names if ENGINE in name]


@pytest.mark.slow
def test_a_run_with_engine_processes_samples_as_in_one_process_and_leaves_none(
    new_run: Callable[[str], StandInRun],
) -> None:
    run = new_run("prograph-qwen2.5-3b")
    names = finish(run)
    left = left_after(f"{MARK}={run.name}")
    assert [name for name in names if ENGINE in name]
    assert left == {}
    sampled = output(run, "sample", "trajectories.parquet").read_bytes()
    path = run.write_configuration("http://127.0.0.1:1/v1")
    run.steep(
        "run", "sample", "--round", "1", "--force", path=path, VLLM_ENABLE_V1_MULTIPROCESSING="0"
    )
    assert output(run, "sample", "trajectories.parquet").read_bytes() == sampled
