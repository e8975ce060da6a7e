"""The rows of ``steep status --json``, which other programs read."""

import json

from pipeline.run.progress import ProgressFile
from tasks.run import task_for
from tests.tasks.test_store_commands import RUNS, steep

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
