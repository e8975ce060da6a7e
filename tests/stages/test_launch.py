"""Training in two processes on a CPU: to the end, and killed at its start."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import psutil
import pytest

from pipeline.config import Sft
from pipeline.core.errors import DependencyError
from pipeline.engine.context import StageContext
from pipeline.engine.progress import ProgressFile, read_progress
from pipeline.training.lora import pick_device
from tasks.sft import run as run_sft
from tasks.train import run as run_round
from tests.training.tiny_policy import Run, weights_of, write_base
from tests.waiting import becomes

ROOT = Path(__file__).resolve().parents[2]
STAGE = """
import json, sys
from pathlib import Path
from pipeline.engine.context import StageContext
from tasks.sft import run as run_sft
run_sft(StageContext.from_json(json.loads(Path(sys.argv[1]).read_text())))
"""


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Run:
    root = tmp_path_factory.mktemp("launch")
    run = Run(root, write_base(root / "base"))
    run.write_data()
    return run


def with_argument(word: str) -> list[psutil.Process]:
    """The processes that have ``word`` in an argument."""
    every = psutil.process_iter(["cmdline"])
    return [one for one in every if any(word in text for text in one.info["cmdline"] or ())]


def training_processes(job: str) -> bool:
    """Whether processes of `pipeline.engine.process.launch` run."""
    name = "pipeline.engine.process.launch"
    return any(name in one.info["cmdline"] for one in with_argument(job))


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="needs /proc")
@pytest.mark.parametrize("seed", [0, 1])
def test_no_training_process_survives_a_kill_at_its_start(run: Run, seed: int) -> None:
    """The stage is killed before the processes have imported torch."""
    context = run.context("sft", f"killed-{seed}", sft={"processes": 2})
    description = run.root / f"killed-{seed}.json"
    description.write_text(json.dumps(context.to_json()))
    stage = subprocess.Popen(
        [sys.executable, "-c", STAGE, str(description)], cwd=ROOT, start_new_session=True
    )
    job = str(context.checkpoint_dir)
    started = becomes(lambda: training_processes(job))
    time.sleep(random.Random(seed).uniform(0, 0.5))
    os.killpg(stage.pid, signal.SIGKILL)
    stage.wait()
    becomes(lambda: not with_argument(job))
    left = with_argument(job)
    for one in left:
        one.kill()
    assert started
    assert left == []


@pytest.mark.slow
def test_two_processes_train_the_policy_of_one(run: Run) -> None:
    """Without dropout, and with steps that the processes divide."""
    import torch

    run_sft(run.context("sft", "sft"))
    contexts: list[StageContext] = []
    for processes in (1, 2):
        dpo = {"per_device_batch_size": 1, "processes": processes, "learning_rate": 1e-3}
        context = run.context("train", f"of-{processes}", lora={"dropout": 0.0}, dpo=dpo)
        progress = ProgressFile(run.root / f"of-{processes}.progress.json")
        run_round(replace(context, progress=progress))
        record = read_progress(progress.path)
        assert record is not None
        assert (record.done, record.total, record.unit) == (4, 4, "steps")
        contexts.append(context)
    of_one, of_two = (weights_of(context.output) for context in contexts)
    rows_one, rows_two = (
        json.loads((context.output / "log.json").read_text())["history"] for context in contexts
    )
    for name, value in of_one.items():
        torch.testing.assert_close(of_two[name], value, rtol=0, atol=1e-5)
    assert [row["step"] for row in rows_two] == [1, 2, 3, 4]
    assert [row["loss"] for row in rows_two] == pytest.approx(
        [row["loss"] for row in rows_one], rel=1e-4
    )


def test_one_gpu_trains_the_policy_of_two_processes_in_one(
    run: Run, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """Torch counts one device, and trains on the CPU all the same, as CUDA is missing."""
    import torch

    sft = {"per_device_batch_size": 1, "epochs": 2}
    alone = run.context("sft", "of-one-process", sft=sft)
    run_sft(alone)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    fewer = run.context("sft", "on-one-gpu", sft={**sft, "processes": 2})
    run_sft(fewer)
    for name, value in weights_of(alone.output).items():
        assert torch.equal(weights_of(fewer.output)[name], value)
    assert fewer.notes["processes"] == {"set": 2, "started": 1}
    assert "sft.processes is 2, and 1 starts on 1 GPU; batch_size stays 4" in capfd.readouterr().out
    assert "processes" not in alone.notes


def test_each_process_needs_its_own_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    import torch

    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 8)
    eight = Sft(learning_rate=1e-4, batch_size=16, processes=8)
    assert pick_device(eight, "sft") == "cuda"
    more = eight.model_copy(update={"processes": 9})
    with pytest.raises(DependencyError, match=r"sft.processes is 9; expected"):
        pick_device(more, "sft")
