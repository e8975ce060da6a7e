"""The checks before the first stage of a run: all faults at once, of the stages that are to run."""

import subprocess
import sys
from pathlib import Path

import pytest

from pipeline.core.errors import InputError
from pipeline.engine.check.collect import RunRefused, check_start
from pipeline.engine.check.devices import Machine
from pipeline.engine.run import run, walk
from tasks import task_for
from tests.tasks.checks.published_files import write_published_files
from tests.tasks.counting_tasks import ROOT, executions
from tests.tasks.small_run import commit


@pytest.fixture
def data(tmp_path: Path) -> str:
    (tmp_path / "data").mkdir()
    return str(write_published_files(tmp_path / "data", decomposed=10))


def test_a_run_is_refused_with_every_fault_before_its_first_stage(elsewhere, data) -> None:
    """`steep check` names the same (`tests/cli/test_check_command.py`)."""
    (Path(data) / "nq/test.jsonl").unlink()
    report = task_for("report", "tearag-llama3-8b", ("dpo.max_length=2048", "gpus=0"), data)
    with pytest.raises(RunRefused) as refused:
        run(report)
    for words in (
        "nq/test.jsonl",
        "dpo.max_length is 2048",  # of the last stage
        "model.base: meta-llama/Meta-Llama-3-8B-Instruct is not in the cache",
        "this machine has no GPU",
    ):
        assert str(refused.value).count(words) == 1
    assert refused.value.exit_status == 2
    assert not list(elsewhere.rglob("*.log"))
    with pytest.raises(InputError, match=r"nq/test\.jsonl"):
        run(report, check=False)


def test_finished_stages_need_neither_model_nor_gpu(elsewhere) -> None:
    overrides = ("index.gpu=true", "sft.quantization=4bit")
    report = task_for("report", "embedded", overrides)
    with pytest.raises(RunRefused, match=r"sft\.quantization is 4bit, index\.gpu is true"):
        run(report)
    for task in walk(report):
        if task.stage in ("sft", "sample", "evaluate-policy"):
            commit(task)
    tasks = list(walk(task_for("report", "embedded", overrides)))
    todo = [task for task in tasks if not task.complete()]
    assert {"score", "train"} <= {task.stage for task in todo}
    assert check_start(tasks, todo, Machine(())).faults == ()


def test_a_light_stage_is_refused_with_its_own_fault(elsewhere) -> None:
    with pytest.raises(RunRefused, match=r"data\.test has no files"):
        run(task_for("questions-test", "embedded", ("data.test=[]",)))
    assert not list(elsewhere.rglob("*.log"))


def test_a_light_stage_needs_neither_the_whole_check_nor_the_plan(workspace: Path) -> None:
    code = (
        "import sys; from pathlib import Path; from pipeline.engine.run import run\n"
        "from tests.tasks.counting_tasks import First, task\n"
        "run(task(First, Path(sys.argv[1])))\n"
        "assert not {'pipeline.engine.check.collect', 'pipeline.engine.plan.plan'} & set(sys.modules)\n"
    )
    subprocess.run([sys.executable, "-c", code, str(workspace)], cwd=ROOT, check=True)
    assert executions(workspace) == ["first"]


def test_what_a_stopped_run_has_written_is_part_of_the_disk_that_it_needs(
    elsewhere, monkeypatch
) -> None:
    corpus = task_for("corpus", "embedded", ("data.closed_world.documents=4000",))
    for task in corpus.requires().values():
        commit(task)
    needed = 650 * 4000  # bytes of its chunks
    free = type("Usage", (), {"free": needed - 1_000_000})
    monkeypatch.setattr("pipeline.engine.check.collect.shutil.disk_usage", lambda _: free)
    with pytest.raises(RunRefused, match="GiB of disk"):
        check_start([corpus], [corpus])
    checkpoints = corpus.store.checkpoint_dir(corpus.key)
    checkpoints.mkdir(parents=True)
    (checkpoints / "chunks").write_bytes(bytes(1_000_000))
    assert check_start([corpus], [corpus]).faults == ()
