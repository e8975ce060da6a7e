"""What a whole stand-in run must have left behind."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from pipeline import config
from tests.published.runs import StandInRun


def finished(run: StandInRun) -> str:
    """The messages of a run that makes pairs, after it has ended.

    The sampled trajectories depend on the processor. Where no question has a right one and a wrong one, the
    run samples again, four times as many.
    """
    try:
        return run.finish()
    except AssertionError as error:
        if "has no preference pairs" not in str(error):
            raise
    return run.finish("--set", "sampling.samples=24")


def check_run(run: StandInRun, messages: str) -> list[dict[str, Any]]:
    """The rows of ``metrics.json``, after checks that hold for every configuration.

    ``messages`` are those of `StandInRun.finish`.
    """
    assert "no faults" in messages  # from steep check
    assert "no GPU; RAM at most" in messages
    assert "<html" in (run.directory / "report.html").read_text(encoding="utf-8")
    rows: list[dict[str, Any]] = json.loads((run.directory / "metrics.json").read_text())
    settings = config.load(run.name, data=str(run.stand_ins.data))
    tested = {file.dataset for file in settings.data.test}
    found = {(row["policy"], row["dataset"]) for row in rows}
    for policy in ("sft", "round-1"):
        assert {(policy, dataset) for dataset in tested} <= found
    assert all(row["n"] >= 1 for row in rows)
    assert sampled(run)["answer"] > 0
    return rows


def sampled(run: StandInRun) -> dict[str, int]:
    """Trajectories of the only round by reason for stopping."""
    stops: dict[str, int] = json.loads(output(run, "sample", "stops.json").read_text())
    return stops


def output(run: StandInRun, stage: str, name: str) -> Path:
    """A file of the newest output of a stage."""
    paths = (run.directory / "store" / stage).glob(f"*/{name}")
    return max(paths, key=lambda path: path.stat().st_mtime)
