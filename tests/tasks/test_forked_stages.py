"""Stages whose process is forked from the fork server end, fail and are killed like new processes."""

import os
import re
from contextlib import contextmanager

import psutil
import pytest

from pipeline.core.gpus import nominal_gpu
from pipeline.engine import run as engine
from pipeline.engine.job import run_stage_of
from pipeline.engine.needs import imports_of
from pipeline.engine.process.supervisor import StageFailed
from pipeline.engine.run import RunFailed, run
from tasks import task_for
from tests.forked_stages import of_a_run
from tests.tasks.counting_tasks import ROOT, Ends, First, Second, task
from tests.waiting import wait_until


@pytest.fixture
def forked(monkeypatch, new_processes):
    """Every stage is forked, and the modules that the server was asked for are listed."""
    asked: list[str] = []

    def modules(stage_task):
        asked.append(stage_task.stage)
        return ("calendar",)

    monkeypatch.setattr(engine, "imports_of", modules)
    monkeypatch.setattr(engine, "machine_gpus", list)
    return asked


def test_forked_stages_write_what_new_processes_write(workspace, forked):
    directory = run(task(Second, workspace), workers=2)
    assert (directory / "manifest.json").is_file()
    log = workspace / "runs" / "embedded" / "logs" / "second.log"
    assert re.search(r"process \d+\n", log.read_text())
    assert {"first", "second"} <= set(forked)
    with pytest.raises(RunFailed, match="killed by SIGKILL, probably by the kernel") as caught:
        run(task(Ends, workspace, "name=SIGKILL"), workers=2)
    assert caught.value.exit_status == 1


@contextmanager
def serving(*stages):
    """The process of the server that forks the stages of a run."""
    before = psutil.Process().children()
    with of_a_run(stages):
        [server] = set(psutil.Process().children()) - set(before)
        yield server


def check_not_run_without(server: psutil.Process, stage) -> None:
    server.kill()
    wait_until(lambda: server.status() == psutil.STATUS_ZOMBIE)
    with pytest.raises(StageFailed, match="its process cannot be started: the fork server"):
        run_stage_of(stage)


def test_a_stage_is_not_run_when_the_server_has_ended(workspace, forked):
    stage = task(First, workspace)
    with serving(stage) as server:
        check_not_run_without(server, stage)


def test_no_stage_is_forked_on_a_machine_with_a_gpu(workspace, forked, monkeypatch):
    """CUDA does not survive a fork."""
    stage = task(First, workspace)
    monkeypatch.setattr(engine, "machine_gpus", lambda: [nominal_gpu(80)])
    with of_a_run([stage]):
        assert stage.attempt.fork_server is None


@pytest.mark.parametrize("module", ["endless", "calendar"])
def test_a_light_stage_is_forked_when_the_server_has_imported_everything(
    workspace, monkeypatch, module
):
    (workspace / "endless.py").write_text("import time\ntime.sleep(600)\n")
    monkeypatch.setenv("PYTHONPATH", f"{workspace}:{os.environ['PYTHONPATH']}")
    light, heavy = task(First, workspace), task(Second, workspace)
    monkeypatch.setattr(engine, "machine_gpus", list)
    monkeypatch.setattr(engine, "imports_of", {light: (), heavy: (module,)}.__getitem__)
    with serving(light, heavy) as server:
        if module == "endless":
            run_stage_of(light)  # as a new process
        else:
            wait_until(lambda: light.attempt.fork_server.ready)
            check_not_run_without(server, light)


@pytest.mark.parametrize(
    ("stage", "module"),
    [
        ("index", "sentence_transformers"),
        ("sft", "trl.trainer.sft_trainer"),
        ("sample", "vllm.v1.engine.llm_engine"),
        ("pair", None),
    ],
)
def test_heavy_stages_name_what_they_import(stage, module):
    names = imports_of(task_for(stage, str(ROOT / "configs/embedded.yaml"), ("shards=1",)))
    assert module in names if module else not names
