"""IRCoT and Search-o1 with the tiny reader in a small closed world: whole runs of the variants.

The tiny reader follows no instruction, so its chains are short. That the loops retrieve, read and
answer is tested with a scripted engine (`test_prompted`).
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from pipeline.core.record_io import read_records
from pipeline.core.records import Trajectory
from tests.rollout.test_conversation_run import steep

PARTS = ("nq", "hotpotqa", "musique")
WORLD = {
    "documents": 200, "musique_train": 200, "wiki2_test": 0,
    **{f"{name}_{split}": n for name in PARTS for split, n in (("sampling", 4), ("dev", 3), ("test", 12))},
}  # fmt: skip
DATA = "[{dataset: nq, path: nq_test.jsonl}, {dataset: hotpotqa, path: hotpotqa_test.json}]"


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_the_variants_run_in_a_closed_world_and_train_nothing(tmp_path: Path) -> None:
    settings = (
        "name=loops",
        "shards=1",
        f"data.closed_world={json.dumps(WORLD)}",
        f"data.test={DATA}",
    )
    for name in ("ircot", "search-o1"):
        steep(tmp_path, "run", "--variant", name, settings=settings)
        files = (tmp_path / "runs/loops/store").glob("evaluate-policy*/*/trajectories.parquet")
        file = max(files, key=lambda path: path.stat().st_mtime)
        found = read_records(file, Trajectory)
        assert len(found) == 24
        rows = json.loads((tmp_path / "runs/loops/metrics.json").read_text())
        assert {row["policy"] for row in rows} == {"base"}
        (mean,) = (row for row in rows if (row["dataset"], row["split"]) == ("all", "test"))
        if name == "ircot":  # the question's passages are in the prompt, and the reader reads them
            assert all(each.steps and each.tokens.retrieved > 50 for each in found)
            assert mean["em"] > 0
        else:
            assert all("<|begin_search_query|>" in each.output for each in found if each.steps)
    assert not list((tmp_path / "runs/loops/store").glob("train*"))
