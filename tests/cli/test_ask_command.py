"""``steep ask``: answers with their steps, on a run with finished indexes and a small random model."""

from __future__ import annotations

import contextlib
import json
import os
import pty
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from functools import partial
from importlib.metadata import version
from pathlib import Path
from typing import Any

import psutil
import pytest

from pipeline.api import Run
from pipeline.core.errors import EngineError
from pipeline.core.gpus import torch_for_cpus
from pipeline.engine.context import StageContext
from pipeline.engine.leases import LOCK_DIR, Capacity, held
from pipeline.engine.opened import Needs
from pipeline.engine.stage import StageTask
from pipeline.rollout.answering import LONGEST_QUESTION, Opening, PolicyProcess
from pipeline.rollout.policy import Policy
from pipeline.serving.asking import asked_policies, open_in_process, opened
from tasks import task_for
from tests.cli.malformed_inputs import finished, refused, steep
from tests.tasks.small_run import finished_run, settings
from tests.waiting import LIMIT, ending, wait_until


def opening(context: StageContext, policy: Policy) -> Opening:
    return partial(open_in_process, context.to_json(), policy)


@pytest.fixture(scope="module")
def overrides(model: Path) -> tuple[str, ...]:
    return settings(model, 512, "rounds=2")


@pytest.fixture(scope="module")
def run(
    overrides: tuple[str, ...], model: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[StageTask]:
    """Finished indexes, SFT and round 1; round 2 is not trained."""
    with contextlib.chdir(tmp_path_factory.mktemp("run")):
        yield finished_run(overrides, model, [0, 1])


@pytest.fixture
def options(run: StageTask) -> list[str]:
    return [word for setting in run.overrides for word in ("--set", setting)]


@pytest.mark.slow
def test_an_answer_is_an_object_with_answer_and_steps_as_in_python(
    run: StageTask, options: list[str]
) -> None:
    """The roll-out is one, so both give the same text; the last trained policy is the default."""
    question = "Where is Vell? <|assistant|>"  # a control token, which stays text
    status, printed, told = steep(["ask", question, "--json", *options])
    assert status == 0, told
    answered = json.loads(printed)
    assert {"answer", "steps", "policy", "stop", "tokens", "seconds"} < answered.keys()
    found = {item["id"] for step in answered["steps"] for item in step["context"]}
    assert {one["id"] for one in answered["sources"]} <= found
    assert (answered["question"], answered["policy"]) == (question, "round-1")
    assert "Policy 1: ready after" in told
    opened = Run.open("embedded", overrides=list(run.overrides))
    [last] = opened.ask([question])
    [base] = opened.ask([question], policy="base")
    assert (answered["output"], answered["fingerprint"]) == (last.output, last.policy)
    assert answered["answer"] == last.answer
    assert base.policy != last.policy


@pytest.mark.slow
def test_every_line_of_standard_input_is_asked_of_all_compared_policies(
    options: list[str],
) -> None:
    lines = b'Where is Vell?\n\n  {"question": "Who is Ada?", "answer": null}\n'
    printed = finished("ask", "--compare", "base,sft", "--json", *options, stdin=lines)
    answers = [json.loads(line) for line in printed.splitlines()]
    assert [answer["question"] for answer in answers] == ["Where is Vell?", "Who is Ada?"]
    for answer in answers:
        assert [each["policy"] for each in answer["policies"]] == ["base", "sft"]
        assert len({each["fingerprint"] for each in answer["policies"]}) == 2
        assert all({"answer", "steps"} <= each.keys() for each in answer["policies"])


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        (["Q?", "--policy", "2"], "make it with `steep run train --round 2 --config embedded"),
        (["Q?", "--policy", "7"], "--policy names policy 7, and rounds is 2"),
        (["Q?", "--policy", "x"], "there is no such directory; expected the number of a policy"),
        (["Q?", "--compare", "sft"], "expected two or more policies, separated by commas"),
        (["Q?", "--compare", "sft,1", "--policy", "1"], "--policy cannot be used with --compare"),
        (["Q?", "--compare", "sft,0,1"], "names one policy twice; name each once"),
        (["  "], "the question is empty"),
        (["x" * (LONGEST_QUESTION + 1)], "the question has 20,001 characters; ask one of at most"),
        (["\udcff"], "not UTF-8"),
    ],
)
def test_a_question_that_cannot_be_asked_is_refused_before_an_engine_starts(
    options: list[str], arguments: list[str], problem: str
) -> None:
    told = refused("ask", *arguments, *options)
    assert problem in told
    assert "starting" not in told


def test_a_run_without_policies_names_the_command_that_trains_one(
    options: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    told = refused("ask", "Q?", *options)
    assert "no policy of runs/embedded is trained; train one with `steep run sft --config" in told


def test_a_run_without_an_index_names_the_command_that_makes_it(
    run: StageTask, overrides: tuple[str, ...]
) -> None:
    searching = [s for s in overrides if not s.startswith("retrieval")]
    task = task_for("evaluate", "embedded", (*searching, "corpus.chunk_words=50"))
    with pytest.raises(
        Exception, match=r"index of runs/embedded is not complete.*`steep run index"
    ):
        asked_policies(task, ["base"])


def test_a_process_that_dies_is_an_error_with_its_status(
    run: StageTask, capfd: pytest.CaptureFixture[str]
) -> None:
    [asked] = asked_policies(run, ["base"])
    process = PolicyProcess("base", opening(asked.context, asked.policy))
    try:
        os.kill(process._process.pid or 0, signal.SIGKILL)
        with pytest.raises(EngineError, match="the process of policy base ended with status -9"):
            process.wait_until_ready()
    finally:
        process.stop()
    assert not process._process.is_alive()
    assert not process._log.exists()


@pytest.mark.slow
def test_asking_waits_for_the_gpu_of_another_run_and_then_holds_it(
    overrides: tuple[str, ...],
    run: StageTask,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The lease is that of a stage; the GPU is only described, so the engine runs on the CPU."""
    monkeypatch.setenv(LOCK_DIR, str(tmp_path / "locks"))
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0")
    describe_gpu(tmp_path / "described", monkeypatch)
    task = task_for("evaluate", "embedded", (*overrides, "gpus=1"))
    device = Capacity(1, 1, ("0",), threads=1, workers=1), Needs(1)
    told: list[str] = []
    waiting = "the engine waits for 1 GPU: another run on this machine hol"
    ready, answered = threading.Event(), threading.Event()

    def ask() -> None:
        with opened(task, asked_policies(task, ["base"]), told.append) as [process]:
            ready.set()
            answered.wait(LIMIT)
            assert process.name == "base"

    thread = threading.Thread(target=ask)
    try:
        with held(*device, told.append):
            thread.start()
            wait_until(lambda: any(line.startswith(waiting) for line in told))
            assert not ready.is_set()
        assert ready.wait(LIMIT)
        waited: list[str] = []
        with held(*device, lambda text: (waited.append(text), answered.set())[0]):
            assert waited, "the engine was running, and its GPU was free"
    finally:
        answered.set()
        thread.join()
        torch_for_cpus.cache_clear()


def describe_gpu(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A driver that lists one GPU, and a torch whose version does not end in ``+cpu``."""
    number = version("torch").partition("+")[0]
    metadata = folder / f"torch-{number}.dist-info" / "METADATA"
    metadata.parent.mkdir(parents=True)
    metadata.write_text(f"Metadata-Version: 2.1\nName: torch\nVersion: {number}\n")
    monkeypatch.syspath_prepend(folder)
    tool = folder / "nvidia-smi"
    tool.write_text("#!/bin/sh\necho 'H100, 81559, GPU-1a'\n")
    tool.chmod(0o755)
    monkeypatch.setenv("PATH", str(folder), prepend=os.pathsep)
    torch_for_cpus.cache_clear()


def test_asking_uses_the_retrieval_and_the_limits_of_the_evaluation(
    overrides: tuple[str, ...], run: StageTask
) -> None:
    given = (*overrides, "evaluation.sampling={max_steps: 2}")
    [asked] = asked_policies(task_for("evaluate", "embedded", given), ["base"])
    assert asked.context.config.sampling.max_steps == 2


def started(options: list[str], **streams: Any) -> subprocess.Popen[bytes]:
    """The command in a process of its own, which an interrupt reaches."""
    return subprocess.Popen(
        [sys.executable, "-m", "pipeline.cli", "ask", "--policy", "base", *options],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, start_new_session=True,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler), **streams,
    )  # fmt: skip


@pytest.mark.slow
def test_questions_are_typed_until_the_end_of_file(options: list[str]) -> None:
    """In a terminal; the answer is shown with its policy and what it took."""
    leader, follower = pty.openpty()
    process = started(options, stdin=follower)
    os.close(follower)
    with ending(process):
        os.write(leader, b"Where is Vell?\n\n\x04")
        printed, told = process.communicate(timeout=LIMIT)
    os.close(leader)
    assert process.returncode == 0, told
    assert "Where is Vell?" in printed.decode()
    assert "0 searches" in printed.decode()
    assert b"ask a question" in told


@pytest.mark.slow
def test_an_interrupt_ends_the_command_and_its_processes(options: list[str]) -> None:
    process = started(options, stdin=subprocess.PIPE)
    with ending(process):
        assert process.stderr is not None
        assert b"starting" in process.stderr.readline()
        time.sleep(0.5)
        os.killpg(process.pid, signal.SIGINT)
        process.communicate(timeout=LIMIT)
    assert process.returncode == 130
    wait_until(lambda: not running(process.pid))


def running(group: int) -> list[str]:
    """The processes of a group that have not ended."""
    found = []
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error, ProcessLookupError):
            if os.getpgid(process.pid) == group and process.status() != psutil.STATUS_ZOMBIE:
                found.append(" ".join(process.cmdline()))
    return found
