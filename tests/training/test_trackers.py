"""Training curves in trackers: what they get, and that a tracker never decides about a training."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterator
from contextvars import ContextVar
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from pipeline.core.errors import DependencyError
from pipeline.engine.context import StageContext
from pipeline.training.trackers import Tracking, check_trackers, reporting
from tasks.train import run as run_round
from tests.stages.divided import content
from tests.training.tiny_policy import Run

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


class Config(dict):
    def update(self, values: Any, allow_val_change: bool = False) -> None:
        super().update(values)


class Trackio(ModuleType):
    """A stand-in for trackio, with what `transformers.integrations` calls.

    Row ``fails_at`` fails; with 0 the start does, as for a server that cannot be reached.
    """

    def __init__(self, fails_at: int = -1) -> None:
        super().__init__("trackio")
        self.__spec__ = ModuleSpec("trackio", None, origin=__file__)
        self.__version__, self.config = "0", Config()
        nothing = ContextVar("run", default=None)
        self.context_vars = SimpleNamespace(current_run=nothing, current_space_id=nothing)
        self.fails_at, self.started, self.logged, self.ended = fails_at, {}, [], 0

    def init(self, **values: Any) -> None:
        if self.fails_at == 0:
            raise ConnectionError("the server cannot be reached\nsecond line")
        self.started = values

    def log(self, values: dict[str, Any]) -> None:
        if len(self.logged) + 1 == self.fails_at:
            raise ConnectionError("the server has gone")
        self.logged.append(values)

    def finish(self) -> None:
        self.ended += 1

    @property
    def rows(self) -> list[dict[str, Any]]:
        return [values for values in self.logged if "train/loss" in values]


def tracked(run: Run, name: str, tracker: Trackio, monkeypatch: pytest.MonkeyPatch) -> StageContext:
    """A round that logs to ``tracker``, when it has ended."""
    monkeypatch.setitem(sys.modules, "trackio", tracker)
    runs_dir = str(run.root / "runs" / name)
    context = run.context("train", name, trackers=["trackio"], runs_dir=runs_dir, dpo=STEPS)
    run_round(context)
    return context


def test_a_tracker_gets_every_row_of_a_round_and_does_not_change_it(
    run: Run, untracked: StageContext, monkeypatch: pytest.MonkeyPatch
) -> None:
    tracker = Trackio()
    context = tracked(run, "followed", tracker, monkeypatch)
    assert tracker.started["project"] == "steep"
    assert tracker.started["name"].startswith("t/train-1/")
    assert tracker.ended == 1
    logged = [(row["train/global_step"], row["train/loss"]) for row in tracker.rows]
    history = json.loads((context.output / "log.json").read_text())["history"]
    assert logged == [(row["step"], row["loss"]) for row in history]
    assert len(logged) == 4
    assert "train/logps/chosen" in tracker.rows[0]
    assert content(context.output) == content(untracked.output)
    assert context.notes == untracked.notes


@pytest.mark.parametrize(
    ("fails_at", "kept", "step"), [pytest.param(0, 0, 0, marks=pytest.mark.slow), (3, 2, 3)]
)
def test_a_tracker_that_fails_is_dropped_and_noted(
    run: Run,
    untracked: StageContext,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    fails_at: int,
    kept: int,
    step: int,
) -> None:
    tracker = Trackio(fails_at)
    context = tracked(run, f"failing-{fails_at}", tracker, monkeypatch)
    assert content(context.output) == content(untracked.output)
    assert len(tracker.rows) == kept
    printed = capsys.readouterr().out
    assert f"tracker trackio failed at step {step}: ConnectionError: the server " in printed


def test_only_the_main_process_logs_under_the_name_of_the_stage_and_settings_of_the_user_win(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "trackio", Trackio())
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
