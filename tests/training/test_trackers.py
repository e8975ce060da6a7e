"""Training curves in trackers: what they get, and that a tracker never decides about a training.

``trackers/trackio`` is a stand-in that records calls, so that these tests need no tracker. The test of
TensorBoard reads a real event file, where that package is installed.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path

import pytest

from pipeline.config import load
from pipeline.core.errors import ConfigError, DependencyError
from pipeline.run.context import StageContext
from pipeline.stages.train import run_round, run_sft
from pipeline.training.trackers import Tracking, check_trackers, reporting
from tasks.run import task_for, walk
from tests.training.tiny_policy import Run, write_base

pytestmark = pytest.mark.filterwarnings("ignore::UserWarning")
ROOT = Path(__file__).resolve().parents[2]
STAND_IN = Path(__file__).parent / "trackers"
STEPS = {"batch_size": 2, "per_device_batch_size": 1, "round_epochs": [1.6]}  # 8 steps


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Run:
    root = tmp_path_factory.mktemp("tracked")
    run = Run(root, write_base(root / "base"))
    run.write_data(pairs=10)
    run_sft(run.context("sft", "sft"))
    return run


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


def content(directory: Path) -> dict[str, bytes]:
    files = (path for path in directory.rglob("*") if path.is_file())
    return {path.relative_to(directory).as_posix(): path.read_bytes() for path in files}


def history(context: StageContext) -> list[dict]:
    return json.loads((context.output / "log.json").read_text())["history"]


def test_without_trackers_nothing_is_logged_anywhere(run: Run, untracked: StageContext) -> None:
    assert reporting(None, run.root) == {"report_to": "none"}
    off = Tracking((), "t", "sft", run.root / "trackers")
    assert reporting(off, run.root) == {"report_to": "none"}
    assert not (run.root / "trackers").exists()
    assert not (untracked.checkpoint_dir / "tracking.json").exists()


@pytest.mark.usefixtures("fresh")
def test_a_tracker_gets_every_row_of_a_round_and_does_not_change_it(
    run: Run, untracked: StageContext, calls: Path
) -> None:
    context = tracked(run, "train", "followed", "trackio", dpo=STEPS)
    run_round(context)
    first, *_, last = [json.loads(line) for line in calls.read_text().splitlines()]
    assert first["call"] == "init"
    assert first["project"] == "steep"
    assert first["name"].startswith("t/train-1/20")
    assert last["call"] == "finish"
    logged = [(row["train/global_step"], row["train/loss"]) for row in rows(calls)]
    assert logged == [(row["step"], row["loss"]) for row in history(context)]
    assert len(logged) == 8
    assert "train/logps/chosen" in rows(calls)[0]
    assert content(context.output) == content(untracked.output)
    assert context.notes == untracked.notes


@pytest.mark.usefixtures("fresh")
def test_supervised_training_is_logged_without_its_held_out_loss(run: Run, calls: Path) -> None:
    run_sft(tracked(run, "sft", "sft-followed", "trackio"))
    lines = [json.loads(line) for line in calls.read_text().splitlines()]
    assert [line["call"] for line in lines].count("init") == 1
    assert lines[0]["name"].startswith("t/sft/20")
    assert lines[-1]["call"] == "finish"
    assert rows(calls)


@pytest.mark.usefixtures("fresh")
@pytest.mark.parametrize(("fails_at", "kept", "step"), [("0", 0, 0), ("3", 2, 3)])
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
    message = context.notes["trackers"]["trackio"]
    assert message.startswith(f"failed at step {step}: ConnectionError: the server ")
    assert f"tracker trackio {message}; training continues without it\n" in capsys.readouterr().out


@pytest.mark.slow
def test_a_killed_training_continues_its_curves_without_repeated_rows(
    run: Run, untracked: StageContext, calls: Path
) -> None:
    context = tracked(run, "train", "killed", "trackio", dpo=STEPS)
    description = run.root / "killed.json"
    description.write_text(json.dumps(context.to_json()))
    entry = "pipeline.stages.train:run_round"
    search = os.pathsep.join([str(STAND_IN), str(ROOT)])
    done = subprocess.run(
        [sys.executable, "-m", "tests.training.killed_runs", str(description), entry, "1", "4"],
        cwd=ROOT, env={**os.environ, "PYTHONPATH": search}, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert done.stdout.endswith("4 kills\n")
    logged = [row["train/global_step"] for row in rows(calls)]
    # A kill between logging a row and noting it repeats that row; nothing else does.
    assert sorted(set(logged)) == list(range(1, 9))
    assert len(logged) <= 8 + 4
    names = {
        line["name"]
        for line in map(json.loads, calls.read_text().splitlines())
        if line["call"] == "init"
    }
    assert len(names) == 1
    assert content(context.output) == content(untracked.output)


def test_tensorboard_files_hold_the_curve(run: Run) -> None:
    pytest.importorskip("tensorboard")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    context = tracked(run, "train", "board", "tensorboard", dpo=STEPS)
    run_round(context)
    folder = context.config.run_dir / "trackers" / "train-1"
    (started,) = folder.iterdir()
    events = EventAccumulator(str(started))
    events.Reload()
    curve = [(event.step, event.value) for event in events.Scalars("train/loss")]
    expected = [(row["step"], pytest.approx(row["loss"])) for row in history(context)]
    assert curve == expected


def test_only_the_main_process_logs(
    tmp_path: Path, calls: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tracking = Tracking(("trackio",), "t", "train-1", tmp_path)
    monkeypatch.setenv("RANK", "1")
    assert reporting(tracking, tmp_path) == {"report_to": "none"}
    monkeypatch.setenv("RANK", "0")
    assert reporting(tracking, tmp_path)["report_to"] == ["trackio"]


def test_a_continued_training_has_the_name_of_its_first_start(tmp_path: Path, calls: Path) -> None:
    tracking = Tracking(("trackio",), "t", "train-1", tmp_path / "trackers")
    (tmp_path / "tracking.json").write_text('{"started": "20260102-030405", "mlflow_run": "m"}')
    assert reporting(tracking, tmp_path) == {
        "report_to": ["trackio"],
        "run_name": "t/train-1/20260102-030405",
        "project": "steep",
    }
    assert os.environ["WANDB_RUN_ID"] == "t-train-1-20260102-030405"
    assert os.environ["MLFLOW_RUN_ID"] == "m"


def test_settings_of_the_user_win(
    tmp_path: Path, calls: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "http://mlflow.example")
    monkeypatch.setenv("WANDB_PROJECT", "mine")
    reporting(Tracking(("trackio",), "t", "sft", tmp_path), tmp_path)
    assert os.environ["MLFLOW_TRACKING_URI"] == "http://mlflow.example"
    assert os.environ["WANDB_PROJECT"] == "mine"


MISSING = [name for name in ("tensorboard", "wandb", "mlflow", "trackio") if not find_spec(name)]


@pytest.mark.skipif(not MISSING, reason="all trackers are installed")
def test_a_missing_package_is_refused_before_anything_runs(tmp_path: Path) -> None:
    with pytest.raises(DependencyError, match=f"pip install {MISSING[0]}, or remove it"):
        check_trackers(MISSING[:1])
    options = ["--set", f"trackers=[{MISSING[0]}]", "--set", f"runs_dir={tmp_path}/runs"]
    done = subprocess.run(
        [sys.executable, "-m", "pipeline.cli", "run", "sft", *options],
        capture_output=True,
        text=True,
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        check=False,
    )
    assert done.returncode == 2
    assert f"error: trackers names {MISSING[0]}" in done.stderr
    assert done.stderr.count("\n") == 1
    assert not (tmp_path / "data").exists()  # the world, which is the first stage


def test_a_directory_is_not_a_package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "curves").mkdir()  # as W&B makes the directory wandb/
    monkeypatch.syspath_prepend(str(tmp_path))
    assert find_spec("curves") is not None
    with pytest.raises(DependencyError, match="curves"):
        check_trackers(["curves"])


def test_a_broken_package_is_one_sentence(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "brokencurves.py").write_text("import no_such_package")
    monkeypatch.syspath_prepend(str(tmp_path))
    tracking = Tracking(("brokencurves",), "t", "sft", tmp_path)
    with pytest.raises(DependencyError, match=r"brokencurves cannot be imported \(No module"):
        reporting(tracking, tmp_path)


def test_trackers_are_in_no_fingerprint() -> None:
    def keys(*overrides: str) -> list[str]:
        report = task_for("report", "embedded", ("rounds=1", *overrides))
        return [task.key.fingerprint for task in walk(report)]

    assert keys("trackers=[wandb, tensorboard]") == keys()


@pytest.mark.parametrize(
    ("value", "message"),
    [("[wandb, wandb]", "named twice"), ("[neptune]", "trackers"), ("wandb", "trackers")],
)
def test_other_values_are_refused(value: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        load("embedded", (f"trackers={value}",))
