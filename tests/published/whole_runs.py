"""What a whole stand-in run must have left behind."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from pipeline import config
from pipeline.core.nested import leaves
from tests.published.replacements import published
from tests.published.runs import StandInRun


def check_report(run: StandInRun) -> list[dict[str, Any]]:
    """The rows of ``metrics.json``, after checks that hold for every configuration."""
    assert "<html" in (run.directory / "report.html").read_text(encoding="utf-8")
    rows: list[dict[str, Any]] = json.loads((run.directory / "metrics.json").read_text())
    settings = config.load(run.name, data=str(run.stand_ins.data))
    tested = {file.dataset for file in settings.data.test}
    found = {(row["policy"], row["dataset"]) for row in rows}
    for policy in ("sft", "round-1"):
        assert {(policy, dataset) for dataset in tested} <= found
    assert all(row["n"] >= 1 for row in rows)
    return rows


def check_engines(run: StandInRun, kind: str) -> None:
    """Every engine that the published file names has run, or its stand-in of ``kind``."""
    named = [key for key in published(run.name) if key.endswith("engine.kind")]
    used = {
        value
        for manifest in run.manifests().values()
        for key, value in leaves(manifest["key"]["settings"])
        if key in named
    }
    assert used == {kind}


def sampled(run: StandInRun) -> dict[str, int]:
    """Trajectories of the only round by reason for stopping."""
    totals: dict[str, int] = {}
    for path in Path(run.directory / "store").glob("sample/*/stops.json"):
        for reason, count in json.loads(path.read_text()).items():
            totals[reason] = totals.get(reason, 0) + count
    return totals
