"""What a whole stand-in run must have left behind."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from pipeline import config
from pipeline.core.answer_metrics import exact_match
from pipeline.core.record_io import read_records
from pipeline.core.records import Trajectory
from tests.published.runs import StandInRun


def finished(run: StandInRun) -> str:
    """The messages of a run that makes pairs, after it has ended.

    The sampled trajectories depend on the processor. Where no question has a right one and a wrong one, the
    run ends before training and the test is skipped.
    """
    try:
        return run.finish()
    except AssertionError as error:
        if "has no preference pairs" in str(error) and not _right_beside_wrong(run):
            pytest.skip("the stand-ins sampled no right answer to choose on this processor")
        raise


def _right_beside_wrong(run: StandInRun) -> bool:
    """Whether a question has a well-formed right trajectory and a wrong one."""
    well_formed: set[str] = set()
    wrong: set[str] = set()
    for trajectory in read_records(output(run, "sample", "trajectories.parquet"), Trajectory):
        right = exact_match(trajectory.answer, trajectory.answers) == 1
        if right and trajectory.format_ok:
            well_formed.add(trajectory.question_id)
        if not right:
            wrong.add(trajectory.question_id)
    return bool(well_formed & wrong)


def check_run(run: StandInRun, messages: str) -> list[dict[str, Any]]:
    """The rows of ``metrics.json``, after checks that hold for every configuration.

    ``messages`` are those of `StandInRun.finish`.
    """
    assert "no faults; no GPU; RAM at most" in messages  # from steep check
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
    """A file of the only output of a stage."""
    (path,) = (run.directory / "store" / stage).glob(f"*/{name}")
    return path
