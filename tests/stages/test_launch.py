"""Training in two processes on a CPU: to the end, and killed at its start."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from pipeline.stages.train import run_sft
from pipeline.training.lineage import read_lineage
from tests.training.tiny_policy import Run, write_base

ROOT = Path(__file__).resolve().parents[2]
STAGE = """
import json, sys
from pathlib import Path
from pipeline.run.context import StageContext
from pipeline.stages.train import run_sft
run_sft(StageContext.from_json(json.loads(Path(sys.argv[1]).read_text())))
"""


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Run:
    root = tmp_path_factory.mktemp("launch")
    run = Run(root, write_base(root / "base"))
    run.write_data()
    return run


def command_lines(word: str) -> dict[int, list[str]]:
    """The command lines of all processes that have ``word`` in an argument, by process id."""
    found = {}
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            words = path.read_bytes().decode().split("\0")
        except OSError:
            continue
        if any(word in argument for argument in words):
            found[int(path.parent.name)] = words
    return found


def training_processes(job: str) -> list[int]:
    """The processes of `pipeline.stages.launch`, without their launcher."""
    return [
        pid
        for pid, words in command_lines(job).items()
        if "pipeline.stages.launch" in words and "--num_processes" not in words
    ]


@pytest.mark.skipif(sys.platform != "linux", reason="needs /proc")
@pytest.mark.parametrize("seed", [0, 1])
def test_no_training_process_survives_a_kill_at_its_start(run: Run, seed: int) -> None:
    """The launcher and the stage are killed together, before the processes have imported torch."""
    context = run.context("sft", f"killed-{seed}", sft={"processes": 2})
    description = run.root / f"killed-{seed}.json"
    description.write_text(json.dumps(context.to_json()))
    stage = subprocess.Popen(
        [sys.executable, "-c", STAGE, str(description)], cwd=ROOT, start_new_session=True
    )
    job = str(context.checkpoint_dir)
    deadline = time.monotonic() + 60
    while not (started := training_processes(job)) and time.monotonic() < deadline:
        time.sleep(0.005)
    time.sleep(random.Random(seed).uniform(0, 0.5))
    os.killpg(stage.pid, signal.SIGKILL)
    stage.wait()
    deadline = time.monotonic() + 10
    while command_lines(job) and time.monotonic() < deadline:
        time.sleep(0.05)
    left = command_lines(job)
    for pid in left:
        os.kill(pid, signal.SIGKILL)
    assert started
    assert left == {}


def test_two_processes_train_one_policy(run: Run, capfd: pytest.CaptureFixture[str]) -> None:
    context = run.context("sft", "two", sft={"processes": 2, "epochs": 2})
    counts = run_sft(context)
    assert counts["examples"] == 8
    lineage = read_lineage(context.output)
    assert lineage.training is not None
    assert lineage.training["steps"] == 4
    assert lineage.training["relative_change"] > 0
    assert context.work["steps"] == 4  # counted by the main process
    assert set(context.work) == {"steps", "training_tokens", "start_seconds"}
    assert context.work["training_tokens"] == 2 * counts["tokens"]
    assert context.work["start_seconds"] > 0
