"""vLLM's multi-process engine, which GPUs use: no process of it survives a kill, and its own death ends the stage."""

from __future__ import annotations

import multiprocessing
import os
import queue
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import Future
from pathlib import Path
from types import SimpleNamespace

import pytest

from pipeline.engine.process.process import child_environment
from pipeline.llm.engine_processes import EngineWatch
from tests.llm.marked_processes import left_after, marked
from tests.llm.small_models import small_model
from tests.waiting import LIMIT, becomes

pytestmark = [
    pytest.mark.timeout(900),
    pytest.mark.skipif(sys.platform != "linux", reason="needs /proc"),
]
ROOT = Path(__file__).resolve().parents[2]
MARK = "STEEP_TEST_KILLED_ENGINE"
# Starts the stage's process as the process of `steep run` does, in its own process group.
RUN = """
import subprocess, sys
from pipeline.engine.process.process import MODULE, child_environment
import os
stage = subprocess.Popen(
    [sys.executable, "-m", MODULE, "tests.llm.killed_engine", *sys.argv[1:]],
    env={**os.environ, **child_environment()},
)
print("stage", stage.pid, flush=True)
sys.exit(stage.wait())
"""


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    pytest.importorskip("vllm", reason="vLLM is not installed")
    return small_model(tmp_path_factory.mktemp("killed-engine") / "model")


def start(model: Path, mark: str, *arguments: str) -> subprocess.Popen[str]:
    environment = {
        **os.environ, **child_environment(), "PYTHONPATH": str(ROOT), MARK: mark,
        "VLLM_ENABLE_V1_MULTIPROCESSING": "1",
    }  # fmt: skip
    return subprocess.Popen(
        [sys.executable, "-c", RUN, str(model), *arguments], cwd=ROOT, env=environment,
        stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, start_new_session=True,
    )  # fmt: skip


def lines(process: subprocess.Popen[str]) -> Iterator[list[str]]:
    assert process.stdout is not None
    return (line.split() for line in process.stdout)


@pytest.mark.slow
def test_no_process_of_an_engine_survives_a_killed_stage_and_the_rerun_starts(model: Path) -> None:
    mark = f"{MARK}=generating"
    with start(model, "generating") as run:
        output = lines(run)
        stage = int(next(output)[1])
        generated = next(line for line in output if line[:1] == ["segment"])
        names = " ".join(marked(mark).values())
        os.kill(stage, signal.SIGKILL)
        left = left_after(mark)
    assert "VLLM::EngineCore" in names
    assert "VLLM::Worker" in names
    assert left == {}
    with start(model, "again", "once") as run:
        assert generated in list(lines(run))
    assert run.returncode == 0
    assert left_after(f"{MARK}=again") == {}


@pytest.mark.slow
def test_a_stage_whose_engine_process_is_killed_ends_with_one_sentence(model: Path) -> None:
    mark = f"{MARK}=engine-killed"
    with start(model, "engine-killed") as run:
        output = lines(run)
        next(line for line in output if line[:1] == ["segment"])
        (core,) = (pid for pid, name in marked(mark).items() if "VLLM::EngineCore" in name)
        os.kill(core, signal.SIGKILL)
        (message,) = list(output)
    assert run.returncode == 2
    assert " ".join(message).startswith(
        "error the process of vLLM's engine was ended by SIGKILL (exit status 137), probably by the "
        "kernel because memory ran out; "
    )
    assert left_after(mark) == {}


def test_the_watch_wakes_a_call_after_another_has_just_got_its_answer() -> None:
    process = multiprocessing.get_context("spawn").Process(target=time.sleep, args=(0,))
    answered, waiting = Future[str](), Future[str]()
    answered.set_result("answer")
    fake_client = SimpleNamespace(
        resources=SimpleNamespace(engine_manager=SimpleNamespace(processes=[process])),
        outputs_queue=queue.Queue(),
        utility_results={0: answered, 1: waiting},
    )
    process.start()
    watch = EngineWatch(fake_client)
    with pytest.raises(RuntimeError, match="a process of the engine has ended"):
        waiting.result(LIMIT)
    watch.close()


@pytest.mark.slow
@pytest.mark.parametrize("killed", ["stage", "run"])
def test_no_process_of_an_engine_survives_a_kill_while_it_starts(model: Path, killed: str) -> None:
    """The engine's process is killed with its parent before it has imported vLLM."""
    mark = f"{MARK}=starting-{killed}"
    with start(model, f"starting-{killed}") as run:
        stage = int(next(lines(run))[1])
        spawned = becomes(lambda: any("spawn_main" in name for name in marked(mark).values()))
        os.kill(stage if killed == "stage" else run.pid, signal.SIGKILL)
        left = left_after(mark)
    assert spawned
    assert left == {}
