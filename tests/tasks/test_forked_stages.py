"""Stages whose process is forked from the fork server end, fail and are killed like new processes."""

import re

import psutil
import pytest

from pipeline.run.supervisor import StageFailed
from tasks import preloading
from tasks.preloading import modules_of
from tasks.run import RunFailed, run, task_for
from tests.tasks.counting_tasks import ROOT, Ends, First, Second, task
from tests.waiting import wait_until


@pytest.fixture
def forked(monkeypatch):
    """Every stage is forked, and the modules that the server was asked for are listed."""
    asked: list[str] = []

    def modules(stage_task):
        asked.append(stage_task.stage)
        return ("calendar",)

    monkeypatch.setattr(preloading, "modules_of", modules)
    monkeypatch.setattr(preloading, "has_gpu", lambda: False)
    return asked


@pytest.mark.parametrize("workers", [1, 2])
def test_forked_stages_write_what_new_processes_write(workspace, forked, workers):
    directory = run(task(Second, workspace), workers=workers)
    assert (directory / "manifest.json").is_file()
    log = workspace / "runs" / "embedded" / "logs" / "second.log"
    assert re.search(r"process \d+\n", log.read_text())
    assert {"first", "second"} <= set(forked)


@pytest.mark.parametrize(
    ("way", "words", "status"),
    [
        ("SIGKILL", "killed by SIGKILL, probably by the kernel because memory ran out", 1),
        ("SIGSEGV", "its process crashed with SIGSEGV in compiled code", 1),
        ("exit", "ended with status 7 and without a message; its last line .* 'last words'", 1),
    ],
)
def test_the_end_of_a_forked_stage_is_explained(workspace, forked, way, words, status):
    with pytest.raises(RunFailed, match=words) as caught:
        run(task(Ends, workspace, f"name={way}"))
    assert caught.value.exit_status == status
    assert str(caught.value).endswith("logs/ends.log)")


def test_a_stage_is_not_run_when_the_server_has_ended(workspace, forked):
    stage = task(First, workspace)
    before = psutil.Process().children()
    with preloading.preloaded([stage]):
        [server] = set(psutil.Process().children()) - set(before)
        server.kill()
        wait_until(lambda: server.status() == psutil.STATUS_ZOMBIE)
        with pytest.raises(StageFailed, match="its process cannot be started: the fork server"):
            stage.run()


@pytest.mark.parametrize(
    ("stage", "module"),
    [
        ("index", "sentence_transformers"),
        ("sft", "trl.trainer.sft_trainer"),
        ("train", "trl.trainer.dpo_trainer"),
        ("sample", "vllm.v1.engine.llm_engine"),
        ("score", "sentence_transformers"),
        ("pair", None),
        ("report", None),
    ],
)
def test_heavy_stages_name_what_they_import(stage, module):
    names = modules_of(task_for(stage, str(ROOT / "configs/embedded.yaml"), ("shards=1",)))
    assert module in names if module else not names


@pytest.mark.parametrize("stage", ["graph", "sft-data"])
def test_stages_that_ask_a_local_model_name_vllm(stage):
    llm = task_for(stage, str(ROOT / "configs/tearag-llama3-8b.yaml"), ("shards=1",))
    assert "vllm.v1.engine.llm_engine" in modules_of(llm)


def test_the_judge_stage_names_vllm_for_the_policys_own_answers():
    judge = task_for("judge", str(ROOT / "configs/embedded-hiprag.yaml"), ("shards=1",))
    assert "vllm.v1.engine.llm_engine" in modules_of(judge)


@pytest.mark.parametrize("reason", ["gpus", "gpu"])
def test_without_a_fork_server_stages_are_new_processes(workspace, forked, monkeypatch, reason):
    monkeypatch.setattr(preloading, "has_gpu", lambda: reason == "gpu")
    stage = task(Second, workspace, *(["gpus=1"] if reason == "gpus" else []))
    with preloading.preloaded([stage]):
        assert stage.fork_server is None
    monkeypatch.setattr(preloading, "has_gpu", lambda: False)
    with preloading.preloaded([task(Second, workspace)]):
        assert task(Second, workspace).fork_server is not None
