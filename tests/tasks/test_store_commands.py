"""``steep status``, ``verify``, ``run`` and ``gc --incomplete`` on a run with damaged outputs."""

import json
import shlex
import subprocess
import sys

import pytest

from pipeline.engine.progress import ProgressFile
from pipeline.engine.run import walk
from tasks import task_for
from tests.tasks.counting_tasks import ROOT
from tests.tasks.small_run import commit_text

RUNS = "runs_dir=runs [/red][bold]"  # no markup of the terminal


def steep(*arguments, cwd):
    done = subprocess.run(
        [sys.executable, "-m", "pipeline.cli", *arguments, "--set", RUNS],
        capture_output=True,
        text=True,
        cwd=cwd,
        env={"PYTHONPATH": str(ROOT), "PATH": "/usr/bin:/bin", "HF_HUB_OFFLINE": "1"},
        check=False,
        timeout=300,
    )
    assert "Traceback" not in done.stdout + done.stderr
    return done


@pytest.fixture
def finished(tmp_path, monkeypatch):
    """A finished run with fabricated outputs; returns the directories by label."""
    monkeypatch.chdir(tmp_path)
    report = task_for("report", "embedded", (RUNS,))
    for task in walk(report):
        commit_text(task, task.label)
    return {task.label: task.directory.absolute() for task in walk(report)}


def test_a_damaged_output_is_listed_with_its_command_and_status_1(tmp_path, finished):
    (finished["pair-2"] / "text.txt").write_text("PAIR-2")
    (finished["evaluate-policy-0"] / "manifest.json").write_text("")
    done = steep("verify", "--json", cwd=tmp_path)
    assert done.returncode == 1
    damaged = {row["label"]: row for row in json.loads(done.stdout) if row["damage"]}
    assert sorted(damaged) == ["evaluate-policy-0", "pair-2"]
    assert shlex.split(damaged["pair-2"]["remake"]) == [
        *("steep", "run", "pair", "--round", "2", "--force", "--config", "embedded"),
        *("--set", RUNS),
    ]
    assert " evaluate-policy --round 0 --force " in damaged["evaluate-policy-0"]["remake"]
    text = steep("verify", cwd=tmp_path).stdout
    assert "pair-2 is damaged: " in text
    assert "text.txt has other content" in text
    assert f"{len(finished)} outputs checked, 2 damaged" in text


def test_gc_of_incomplete_outputs_says_what_it_removed_and_what_it_left(tmp_path, finished):
    folder = finished["pair-2"].parent
    (folder / "0123456789abcdef.partial").mkdir()
    (folder / "thesis").mkdir()
    done = steep("gc", "--incomplete", cwd=tmp_path)
    assert done.returncode == 0
    assert "0123456789abcdef.partial" in done.stdout
    assert "thesis was not made by steep" in done.stdout
    assert done.stdout.endswith("1 directories and files removed\n")
    assert (folder / "thesis").exists()


KEYS = [
    "label", "state", "counts", "wall_seconds", "directory", "damage", "remake", "progress", "message",
]  # fmt: skip
PROGRESS = ["done", "total", "unit", "percent", "rate", "remaining_seconds", "values"]


def test_every_row_has_the_documented_keys(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    graph = task_for("graph", "embedded", (RUNS,))
    stopped = graph.store.progress_file(graph.key)
    stopped.parent.mkdir(parents=True)
    ProgressFile(stopped).start(None, "triples", done=7)
    rows = {row["label"]: row for row in json.loads(steep("status", "--json", cwd=tmp_path).stdout)}
    assert all(list(row) == KEYS for row in rows.values())
    assert list(rows["graph"]["progress"]) == PROGRESS
    assert rows["graph"]["progress"]["done"] == 7
    assert rows["graph"]["message"] == "stopped at 7 triples; it starts again"
    assert rows["corpus"]["progress"] is None
