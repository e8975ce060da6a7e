"""``steep status`` and ``steep verify`` on stopped and damaged outputs."""

import json
import shlex

import pytest

from pipeline.engine.progress import ProgressFile
from pipeline.engine.run import walk
from tasks import task_for
from tests.cli.malformed_inputs import steep as command
from tests.tasks.small_run import commit_text

RUNS = "runs_dir=runs [/red][bold]"  # no markup of the terminal


@pytest.fixture
def steep(tmp_path, monkeypatch):
    """The command on a run of the working directory."""
    monkeypatch.chdir(tmp_path)
    return lambda *arguments: command([*arguments, "--set", RUNS])


def test_verify_reads_everything_and_names_damaged_outputs_with_their_commands_and_status_1(steep):
    finished = {task.label: task for task in walk(task_for("report", "embedded", (RUNS,)))}
    for label, task in finished.items():
        commit_text(task, label)
    (finished["pair-2"].directory / "text.txt").write_text("PAIR-2")  # as long as before
    (finished["evaluate-policy-0"].directory / "manifest.json").write_text("")
    status, printed, _ = steep("verify", "--json")
    assert status == 1
    damaged = {row["label"]: row for row in json.loads(printed) if row["damage"]}
    assert sorted(damaged) == ["evaluate-policy-0", "pair-2"]
    assert shlex.split(damaged["pair-2"]["remake"]) == [
        *("steep", "run", "pair", "--round", "2", "--force", "--config", "embedded"),
        *("--set", RUNS),
    ]
    assert " evaluate-policy --round 0 --force " in damaged["evaluate-policy-0"]["remake"]
    text = steep("verify")[1]
    assert "pair-2 is damaged: " in text
    assert "text.txt has other content" in text
    assert f"{len(finished)} outputs checked, 2 damaged" in text


KEYS = [
    "label", "state", "counts", "wall_seconds", "directory", "damage", "remake", "progress", "message",
]  # fmt: skip
PROGRESS = ["done", "total", "unit", "percent", "rate", "remaining_seconds", "values"]


def test_every_row_has_the_documented_keys(steep):
    graph = task_for("graph", "embedded", (RUNS,))
    stopped = graph.store.progress_file(graph.key)
    stopped.parent.mkdir(parents=True)
    ProgressFile(stopped).start(None, "triples", done=7)
    rows = {row["label"]: row for row in json.loads(steep("status", "--json")[1])}
    assert all(list(row) == KEYS for row in rows.values())
    assert list(rows["graph"]["progress"]) == PROGRESS
    assert rows["graph"]["progress"]["done"] == 7
    assert rows["graph"]["message"] == "stopped at 7 triples; it starts again"
    assert rows["corpus"]["progress"] is None
