"""Over- and under-search rates of policies, in the metrics rows and on the report page."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from pipeline.core.record_io import write_parquet
from pipeline.core.verdicts import Verdict
from pipeline.engine.context import StageContext
from pipeline.look.report.page import run
from tasks.evaluate import run as merge
from tests.report.test_report_page import Page
from tests.stages.fabricated_run import configuration, trajectory, write_evaluation, write_run

STEPS = {  # by trajectory: the kind of each step and its verdict
    "m1": [("over", "yes"), ("over", "no")],
    "m2": [("over", "no"), ("under", "yes")],
    "n1": [("over", "yes"), ("under", "unknown")],
}


def judged(directory: Path, steps=STEPS) -> Path:
    directory.mkdir(parents=True)
    verdicts = [
        Verdict(name, number, kind, verdict, "judge", "key")
        for name, decisions in steps.items()
        for number, (kind, verdict) in enumerate(decisions)
    ]
    write_parquet(directory / "verdicts.parquet", verdicts, Verdict)
    return directory


def evaluated(tmp_path: Path, **verdicts: Path) -> list[dict]:
    trajectories = [
        trajectory("qm1", "Ostar", name="m1"),
        trajectory("qm2", "Vell", name="m2"),
        trajectory("qn1", "Ostar", name="n1", dataset="nq"),
    ]
    output = tmp_path / "merged"
    inputs = {"sft": write_evaluation(tmp_path / "sft", trajectories), **verdicts}
    merge(StageContext(configuration(), "evaluate", output, tmp_path / "partial", inputs))
    return json.loads((output / "metrics.json").read_text())


def test_rates_are_over_steps_within_a_data_set_and_averaged_over_data_sets(tmp_path: Path):
    rows = evaluated(tmp_path, **{"judge-sft": judged(tmp_path / "judge")})
    rates = {row["dataset"]: (row["osr"], row["usr"], row["unknown"]) for row in rows}
    assert rates["musique"] == pytest.approx((1 / 3, 1.0, 0.0))
    assert rates["nq"] == (1.0, None, 0.5)  # the verdict on its only step without search is unknown
    assert rates["all"] == pytest.approx((2 / 3, 1.0, 0.25))
    assert rates["all-questions"] == pytest.approx((2 / 4, 1.0, 1 / 6))


def test_the_page_shows_the_rates_if_there_are_verdicts(tmp_path: Path):
    context = write_run(tmp_path)
    path = context.inputs["evaluate"] / "metrics.json"
    rows = json.loads(path.read_text())
    for row in rows:
        row |= {"osr": 0.123, "usr": 0.456, "unknown": 0.011}
    path.write_text(json.dumps(rows))
    run(context)
    page = Page((context.output / "report.html").read_text())
    assert page.misnested == page.open == []
    assert " 12.3 45.6 1.1 " in page.text
    assert "Over-search rate 12.3 %" in page.text
