"""Training curves in trackers: what they get, and that a tracker never decides about a training.

``trackers/trackio`` is a stand-in that records calls, so that these tests need no tracker.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from pipeline.core.errors import DependencyError
from pipeline.engine.context import StageContext
from pipeline.training.trackers import Tracking, check_trackers, reporting
from tasks.train import run as run_round
from tests.stages.divided import content
from tests.training.tiny_policy import Run

ROOT = Path(__file__).resolve().parents[2]
STAND_IN = Path(__file__).parent / "trackers"
STEPS = {"batch_size": 2, "per_device_batch_size": 1, "round_epochs": [0.8]}  # 4 steps


@pytest.fixture(scope="module")
def run(policy_0: Run, tmp_path_factory: pytest.TempPathFactory) -> Run:
    return policy_0.copy(tmp_path_factory.mktemp("tracked"), pairs=10)


@pytest.fixture(scope="module")
def untracked(run: Run) -> StageContext:
    context = run.context("train", "untracked", dpo=STEPS)
    run_round(context)
    return context


@pytest.fixture(autouse=True)
def _own_environment() -> Iterator[None]:
    """Trackers are set up through environment variables of the stage's own process."""
    before = dict(os.environ)
    yield
    for name in set(os.environ) - set(before):
        del os.environ[name]


@pytest.fixture
def calls(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The file of the stand-in's calls, which has the place of trackio."""
    monkeypatch.syspath_prepend(str(STAND_IN))
    monkeypatch.setenv("TRACKIO_STAND_IN", str(tmp_path / "calls.jsonl"))
    return tmp_path / "calls.jsonl"


@pytest.fixture
def fresh() -> Iterator[None]:
    """The stand-in reads its settings when it is imported."""
    sys.modules.pop("trackio", None)
    yield
    sys.modules.pop("trackio", None)


def tracked(run: Run, stage: str, name: str, *trackers: str, **blocks: object) -> StageContext:
    runs_dir = str(run.root / "runs" / name)
    return run.context(stage, name, trackers=list(trackers), runs_dir=runs_dir, **blocks)


def rows(path: Path) -> list[dict]:
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    return [line for line in lines if line["call"] == "log" and "train/loss" in line]


def history(context: StageContext) -> list[dict]:
    return json.loads((context.output / "log.json").read_text())["history"]


@pytest.mark.usefixtures("fresh")
def test_a_tracker_gets_every_row_of_a_round_and_does_not_change_it(
    run: Run, untracked: StageContext, calls: Path
) -> None:
    context = tracked(run, "train", "followed", "trackio", dpo=STEPS)
    run_round(context)
    first, *_, last = [json.loads(line) for line in calls.read_text().splitlines()]
    assert first["call"] == "init"
    assert first["project"] == "steep"
    assert first["name"].startswith("t/train-1/")
    assert last["call"] == "finish"
    logged = [(row["train/global_step"], row["train/loss"]) for row in rows(calls)]
    assert logged == [(row["step"], row["loss"]) for row in history(context)]
    assert len(logged) == 4
    assert "train/logps/chosen" in rows(calls)[0]
    assert content(context.output) == content(untracked.output)
    assert context.notes == untracked.notes


@pytest.mark.usefixtures("fresh")
@pytest.mark.parametrize(
    ("fails_at", "kept", "step"), [pytest.param("0", 0, 0, marks=pytest.mark.slow), ("3", 2, 3)]
)
def test_a_tracker_that_fails_is_dropped_and_noted(
    run: Run,
    untracked: StageContext,
    calls: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    fails_at: str,
    kept: int,
    step: int,
) -> None:
    monkeypatch.setenv("TRACKIO_FAILS_AT", fails_at)
    context = tracked(run, "train", f"failing-{fails_at}", "trackio", dpo=STEPS)
    run_round(context)
    assert content(context.output) == content(untracked.output)
    assert (len(rows(calls)) if calls.exists() else 0) == kept
    printed = capsys.readouterr().out
    assert f"tracker trackio failed at step {step}: ConnectionError: the server " in printed


def test_only_the_main_process_logs_under_the_name_of_the_stage_and_settings_of_the_user_win(
    tmp_path: Path, calls: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tracking = Tracking(("trackio",), "t", "train-1", tmp_path / "trackers")
    assert reporting(None, tmp_path) == {"report_to": "none"}
    monkeypatch.setenv("RANK", "1")
    assert reporting(tracking, tmp_path) == {"report_to": "none"}
    monkeypatch.setenv("RANK", "0")
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "http://mlflow.example")
    assert reporting(tracking, tmp_path / "0a1b.partial") == {
        "report_to": ["trackio"], "run_name": "t/train-1/0a1b", "project": "steep",
    }  # fmt: skip
    curves = str(tmp_path / "trackers" / "train-1" / "0a1b")  # transformers reads this variable
    assert os.environ["TENSORBOARD_LOGGING_DIR"] == curves
    assert os.environ["WANDB_RUN_ID"] == "t-train-1-0a1b"
    assert os.environ["MLFLOW_TRACKING_URI"] == "http://mlflow.example"


def test_a_package_that_is_missing_or_broken_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "curves").mkdir()  # as W&B makes the directory wandb/
    (tmp_path / "brokencurves.py").write_text("import no_such_package")
    monkeypatch.syspath_prepend(str(tmp_path))
    with pytest.raises(DependencyError, match="pip install curves, or remove it from trackers"):
        check_trackers(["curves"])
    with pytest.raises(DependencyError, match=r"brokencurves cannot be imported \(No module"):
        reporting(Tracking(("brokencurves",), "t", "sft", tmp_path), tmp_path)
