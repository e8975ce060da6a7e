"""Stages as jobs of submitit: real processes of its local executor, and what Slurm would be asked."""

from __future__ import annotations

import fcntl
import re
import signal
import sys
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from pipeline.engine import job
from pipeline.engine.execution import cluster, slurm
from pipeline.engine.execution.cluster import Request
from pipeline.engine.process.supervisor import StageJob
from pipeline.engine.progress import read_progress
from pipeline.engine.run import RunFailed, run
from tests.tasks.counting_tasks import ROOT, Second, Waits, executions, new_process, task
from tests.waiting import LIMIT, wait_until

LOCAL = ("execution.kind=slurm", "execution.slurm.cluster=local", "execution.threads=2")
JOB = StageJob(context={"inputs": {}}, entry="", root="", log="")


def content(directory: Path) -> dict[str, bytes]:
    """The files of an output, without its manifest."""
    files = (path for path in directory.rglob("*") if path.is_file())
    return {path.name: path.read_bytes() for path in files if path.name != "manifest.json"}


@pytest.mark.slow
def test_a_job_writes_what_a_process_of_this_machine_writes(workspace, capfd) -> None:
    directory = run(task(Second, workspace, *LOCAL))
    assert executions(workspace) == ["first", "second", "batch 0", "batch 1", "batch 2"]
    assert re.search(r"second +submitted as local job \d+\n", capfd.readouterr().out)
    assert not any((workspace / "runs/embedded/jobs").iterdir())
    here = task(Second, workspace, f"runs_dir={workspace / 'here'}")
    assert here.key == task(Second, workspace, *LOCAL).key
    assert content(run(here)) == content(directory)


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM, signal.SIGINT])
def test_a_run_that_ends_cancels_its_job_and_the_stage_continues(
    workspace, monkeypatch, number: signal.Signals
) -> None:
    """A killed run tells its driver nothing. A shell's background run ignores SIGINT, by which
    submitit cancels jobs.
    """

    def ignore_interrupts() -> None:
        ignored = signal.SIG_IGN if number == signal.SIGTERM else signal.SIG_DFL
        signal.signal(signal.SIGINT, ignored)

    stage = task(Waits, workspace, *LOCAL)
    checkpoint = stage.store.checkpoint_dir(stage.key) / "checkpoint.txt"
    with new_process(Waits, workspace, *LOCAL, popen={"preexec_fn": ignore_interrupts}) as started:
        wait_until(checkpoint.exists)
        record = read_progress(stage.store.progress_file(stage.key))
        assert record is not None
        assert record.job.startswith("local job ")
        monkeypatch.setattr(job, "LOCK_SECONDS", 0.2)
        with pytest.raises(RunFailed, match=r"of local job \d+ on .* holds .*\.lock"):
            run(task(Waits, workspace))
        started.send_signal(number)
        assert started.wait(LIMIT) != 0
    wait_until(lambda: not stage.store.in_use(stage.key))
    checkpoint.write_text("of the first job")
    (workspace / "release").touch()
    assert (run(stage) / "text.txt").read_text() == "of the first job"


def request(**settings: Any) -> Request:
    block = {
        "cluster": "slurm", "directives": [
            "--time=90", "--partition=gpu", "--account=lab", "--mem-per-cpu=6656M", "--qos=high", "--exclusive"
        ],
    }  # fmt: skip
    return Request(
        "slurm job", "train-1", "/shared", "/shared/jobs/train-1", "lower dpo.x", {},
        gpus=4, processes=4, each=8, slurm=block | settings, job=JOB,
    )  # fmt: skip


def sbatch(asked: Request) -> str:
    """The file that would be submitted."""
    from submitit.slurm.slurm import SlurmExecutor, _make_sbatch_string

    given = slurm.parameters(asked)
    names = SlurmExecutor._equivalence_dict()
    values = {
        names.get(name, name.removeprefix("slurm_")): value  # type: ignore[call-overload]
        for name, value in given.items()
    }
    return str(_make_sbatch_string(command="stage", folder="/shared/jobs", **values))


def test_the_needs_of_a_stage_are_directives() -> None:
    text = sbatch(request())
    for directive in (
        "job-name=steep-train-1", "partition=gpu", "account=lab", "time=90", "mem-per-cpu=6656M", "nodes=1",
        "ntasks-per-node=1", "gpus-per-node=4", "cpus-per-task=32", "qos=high", "exclusive", "requeue",
    ):  # fmt: skip
        assert f"#SBATCH --{directive}\n" in text, text
    # Since Slurm 22.05 the step of srun would otherwise have one CPU.
    assert re.search(r"^srun .* --cpus-per-task=32 stage$", text, re.MULTILINE)
    assert "#SBATCH --mem-per-cpu=6656M\n" in text
    other = sbatch(replace(request(directives=[]), gpus=0))
    assert "--mem" not in other
    assert "gpus" not in other


@pytest.mark.parametrize(
    ("gpus", "processes", "threads", "of_process"),
    [(0, 1, 3, 3), (4, 4, 12, 3), (0, 9, 9, 1)],
)
def test_a_stage_has_the_cpu_threads_of_its_gpus(
    monkeypatch, gpus, processes, threads, of_process
) -> None:
    """Its job asks for them, and its process computes with them."""
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    given = replace(request(), gpus=gpus, processes=processes, each=3)
    assert slurm.parameters(given)["cpus_per_task"] == threads
    assert given.variables()["OMP_NUM_THREADS"] == str(of_process)


def test_a_job_at_its_time_limit_is_queued_again_with_its_stage() -> None:
    again = slurm.StageCall().checkpoint(request())
    assert isinstance(again.function, slurm.StageCall)
    assert again.args == (request(),)


def test_a_machine_without_slurm_is_told_so(workspace, monkeypatch) -> None:
    monkeypatch.setenv("PATH", str(Path(sys.executable).parent))
    with pytest.raises(RunFailed, match=r"could not be submitted: .*srun.*; run on a machine with"):
        run(task(Second, workspace, "execution.kind=slurm"))


def test_a_file_system_that_does_not_lock_between_machines_is_noticed(
    workspace, monkeypatch
) -> None:
    """The driver holds a lock beside the job, which the stage's machine must find taken."""
    asked = replace(request(), directory=str(ROOT), folder=str(workspace))
    monkeypatch.chdir(ROOT)
    started = RuntimeError("the stage starts")

    def start(*args: Any) -> dict[str, int]:
        raise started

    monkeypatch.setattr(cluster, "run_stage", start)
    outcome = cluster.run_here(asked, "7")
    assert "does not lock files between machines; mount it with locks" in outcome["message"]
    with (workspace / "run.lock").open("ab") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        with pytest.raises(RuntimeError, match="the stage starts"):
            cluster.run_here(asked, "7")


def test_a_machine_that_does_not_see_the_run_says_so(workspace, monkeypatch) -> None:
    monkeypatch.setattr(cluster.visible, "__defaults__", (0.0,))
    asked = replace(request(), directory=str(workspace), folder="/elsewhere")
    message = cluster.run_here(asked, "7")["message"]
    assert re.match(
        r"slurm job 7 on \S+ does not see /elsewhere; keep it on a file system", message
    )


ERROR = "slurm_load_jobs error:"


@pytest.mark.parametrize(
    ("answer", "expected"),
    [
        ("echo 'RUNNING|None'", ("RUNNING", "")),
        ("echo 'PENDING|PartitionConfig'", ("PENDING", "PartitionConfig")),
        ("echo 'PENDING|None'", ("PENDING", "")),
        ("echo 'CANCELLED|PartitionConfig'", ("CANCELLED", "")),
        (f"echo {ERROR} Unable to contact slurm controller >&2; exit 1", ("", "")),
        (f"echo {ERROR} Invalid job id specified >&2; exit 1", ("GONE", "")),
    ],
)
def test_squeue_tells_the_state_of_a_job_without_accounting(
    tmp_path, monkeypatch, answer, expected
) -> None:
    """The answers are those of Slurm 22.05."""
    fake = tmp_path / "squeue"
    fake.write_text(f'#!/bin/sh\ncase "$*" in *--jobs=8) {answer};; esac\n')
    fake.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    assert slurm.queue_state(SimpleNamespace(job_id="8")) == expected


@pytest.mark.parametrize(
    ("state", "words"),
    [
        ("GONE", "run the command again"),
        ("TIMEOUT", "raise --time in execution.slurm.directives"),
        ("OUT_OF_MEMORY", "raise --mem-per-cpu in execution.slurm.directives, or lower dpo.x"),
    ],
)
def test_a_job_that_cannot_start_says_why_and_a_job_without_a_result_ends_the_stage(
    tmp_path, monkeypatch, state: str, words: str
) -> None:
    """Without accounting such a stage waited forever, and said nothing."""
    states = iter([("PENDING", "Priority"), ("PENDING", "PartitionConfig"), ("", "")])
    monkeypatch.setattr(slurm, "_ASK", 0.0)
    monkeypatch.setattr(slurm, "queue_state", lambda job: next(states, (state, "")))
    paths = SimpleNamespace(result_pickle=tmp_path / "result", stdout="77_log.out")
    told: list[str] = []
    watch: Any = SimpleNamespace(look=lambda: None, note=told.append)
    job = SimpleNamespace(job_id="8", paths=paths)
    outcome = slurm._outcome(job, request(), watch, [])
    assert outcome["message"].startswith(
        f"slurm job 8 ended without a result ({state}; see 77_log.out); {words}"
    )
    assert told == [
        "slurm job 8 waits in the queue: Priority",
        "slurm job 8 waits in the queue: PartitionConfig",
    ]
