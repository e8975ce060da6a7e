"""A stage that cannot say why it failed is described in one sentence, with its log."""

import os
import re
import resource
import subprocess

import pytest

from pipeline.engine.check.collect import folder_faults
from pipeline.engine.run import RunFailed, run
from tests.tasks.counting_tasks import Ends, First, new_process, task
from tests.waiting import LIMIT

LOG = r"ends: .* \(log: .*/logs/ends\.log\)"


def failure(workspace, way: str) -> RunFailed:
    with pytest.raises(RunFailed) as caught:
        run(task(Ends, workspace, f"name={way}"))
    return caught.value


@pytest.mark.usefixtures("new_processes")
def test_a_stage_killed_for_memory_is_named_with_the_settings_that_take_less(workspace):
    caught = failure(workspace, "SIGKILL")
    assert caught.exit_status == 1
    assert "killed by SIGKILL, probably by the kernel because memory ran out" in str(caught)
    assert "lower sampling.in_flight, sampling.batch" in str(caught)
    assert str(caught).endswith("logs/ends.log)")


@pytest.mark.parametrize(
    ("way", "words", "status"),
    [
        ("SIGTERM", "its process was ended by SIGTERM, from a user, a batch system", 1),
        ("SIGSEGV", "its process crashed with SIGSEGV in compiled code", 1),
        ("exit", "ended with status 7 and without a message; its last line .* 'last words'", 1),
        ("full", "No space left on device; free some", 2),
        ("limit", "File too large; raise the limit", 2),
        ("files", "Too many open files; raise the limit", 2),
        ("memory", "memory ran out; lower the batch sizes", 1),
    ],
)
def test_the_end_of_a_stage_is_explained(workspace, way, words, status):
    caught = failure(workspace, way)
    assert caught.exit_status == status
    assert re.search(words, str(caught))
    assert re.fullmatch(LOG, str(caught))  # one line


def test_a_stage_whose_log_cannot_take_a_word_is_explained(workspace):
    """The disk of the log is full: the stage's first line of output fails."""
    logs = workspace / "runs" / "embedded" / "logs"
    logs.mkdir(parents=True)
    (logs / "first.log").symlink_to("/dev/full")
    with pytest.raises(RunFailed, match=r"first.log: No space left on device") as caught:
        run(task(First, workspace))
    assert caught.value.exit_status == 2


def limited() -> None:
    """As on a full disk, where no stage can start, so there is no log yet."""
    resource.setrlimit(resource.RLIMIT_FSIZE, (10, 10))


def test_a_file_of_the_run_that_cannot_be_written_is_named_with_cause_and_remedy(workspace):
    run(task(First, workspace))
    popen = {"preexec_fn": limited, "stderr": subprocess.PIPE, "text": True}
    with new_process(First, workspace, force=True, keep_config=True, popen=popen) as process:
        _, complaint = process.communicate(timeout=LIMIT)
    assert process.returncode == 2
    assert re.fullmatch(
        r"error: /.*/runs/embedded: File too large; raise the limit .*\n", complaint
    )
    assert task(First, workspace).complete()


@pytest.mark.usefixtures("new_processes")
def test_an_import_error_while_the_process_starts_is_shown(workspace, monkeypatch):
    broken = workspace / "broken"
    broken.mkdir()
    (broken / "pydantic.py").write_text("raise ImportError('a damaged installation')")
    monkeypatch.setenv("PYTHONPATH", f"{broken}{os.pathsep}{os.environ['PYTHONPATH']}")
    with pytest.raises(RunFailed, match=r"first: .*'ImportError: a damaged installation'"):
        run(task(First, workspace), workers=2)


@pytest.mark.parametrize(
    ("place", "kind"),
    [("runs/embedded/store", "file"), ("runs/embedded/logs", "link")],
)
def test_a_file_in_the_place_of_a_directory_is_a_fault_of_the_run(workspace, place, kind):
    path = workspace / place
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("") if kind == "file" else path.symlink_to(workspace / "absent")
    [fault] = folder_faults(task(First, workspace).settings)
    assert fault.startswith(f"{path} is not a directory; remove it")
