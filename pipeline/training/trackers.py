"""Training curves in TensorBoard, W&B, MLflow or trackio, through the integrations of transformers.

Input: the names of trackers. Output: arguments of a trainer (``report_to`` and a name for its run),
and after its construction a guard around each tracker. The guard ensures two things that the
integrations do not. A tracker that fails (no network, no login, a full disk) must not end a
training, so it is dropped with a line in the log. A training that continues after a kill must also
continue its curves: it repeats the steps after its last checkpoint, and logs their rows only once.
"""

from __future__ import annotations

import importlib
import importlib.util
import os
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from functools import partialmethod
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pipeline.core.atomic import write_json
from pipeline.core.errors import DependencyError, InputError
from pipeline.core.input_files import read_json
from pipeline.training.trl_types import TrlTrainer

if TYPE_CHECKING:
    from transformers import TrainerCallback, TrainerControl, TrainerState, TrainingArguments

PROJECT = "steep"  # the project or experiment, unless an environment variable names another
_STATE = "tracking.json"


@dataclass(frozen=True)
class Tracking:
    """Where a training is logged to.

    ``trackers`` are "tensorboard", "wandb", "mlflow" or "trackio"; ``run`` is the name of the run
    and ``label`` the name of the stage in it. Trackers that write files write them below
    ``directory``.
    """

    trackers: tuple[str, ...]
    run: str
    label: str
    directory: Path


@dataclass
class _State:
    """State for a continued training, kept in the stage's checkpoint directory.

    ``started`` is the UTC time of the first start, ``logged`` the last logged step by tracker, and
    ``failed`` the message of each tracker that was dropped.
    """

    started: str = field(default_factory=lambda: time.strftime("%Y%m%d-%H%M%S", time.gmtime()))
    logged: dict[str, int] = field(default_factory=dict)
    failed: dict[str, str] = field(default_factory=dict)
    mlflow_run: str | None = None

    @classmethod
    def read(cls, checkpoint_dir: Path) -> _State:
        try:
            return cls(**read_json(checkpoint_dir / _STATE))
        except (InputError, TypeError):  # the first start
            return cls()

    def write(self, checkpoint_dir: Path) -> None:
        write_json(checkpoint_dir / _STATE, asdict(self))


def check_trackers(trackers: Sequence[str]) -> None:
    """Raise DependencyError when the package of a tracker is missing."""
    missing = [name for name in trackers if not _installed(name)]
    if missing:
        names = " ".join(missing)
        raise DependencyError(
            f"trackers names {', '.join(missing)}, and no such package is installed; pip install "
            f"{names}, or remove it from trackers"
        )


def _installed(package: str) -> bool:
    """Whether a package can be imported; a directory of its name (such as ``wandb/``) cannot."""
    found = importlib.util.find_spec(package)
    return found is not None and found.origin is not None


def _import(trackers: Sequence[str]) -> None:
    for name in trackers:
        try:
            importlib.import_module(name)
        except ImportError as error:
            raise DependencyError(
                f"the package of tracker {name} cannot be imported ({error}); install it again, or "
                "remove it from trackers"
            ) from None


def reporting(tracking: Tracking | None, checkpoint_dir: Path) -> dict[str, object]:
    """Arguments of a trainer that make it log to trackers.

    Only the main process logs. Sets environment variables that the integrations read. A variable
    that the user has set is kept. Raises DependencyError when a package is missing or broken.
    """
    if tracking is None or not tracking.trackers or os.environ.get("RANK", "0") != "0":
        return {"report_to": "none"}
    check_trackers(tracking.trackers)
    state = _State.read(checkpoint_dir)
    state.failed.clear()  # a tracker that failed is tried again
    state.write(checkpoint_dir)
    directory = tracking.directory.absolute()
    directory.mkdir(parents=True, exist_ok=True)
    os.environ["TENSORBOARD_LOGGING_DIR"] = str(directory / tracking.label / state.started)
    os.environ["WANDB_RUN_ID"] = f"{tracking.run}-{tracking.label}-{state.started}"
    os.environ["WANDB_RESUME"] = "allow"
    if state.mlflow_run is not None:
        os.environ["MLFLOW_RUN_ID"] = state.mlflow_run
    defaults = {
        "WANDB_PROJECT": PROJECT,
        "WANDB_DIR": str(directory),
        "MLFLOW_EXPERIMENT_NAME": PROJECT,
        "MLFLOW_TRACKING_URI": f"sqlite:///{directory / 'mlflow.db'}",
        "TRACKIO_DIR": str(directory / "trackio"),
    }
    for name, value in defaults.items():
        os.environ.setdefault(name, value)
    # After the variables, which some packages read when they are imported.
    _import(tracking.trackers)
    return {
        "report_to": list(tracking.trackers),
        "run_name": f"{tracking.run}/{tracking.label}/{state.started}",
        "project": os.environ.get("TRACKIO_PROJECT", PROJECT),
    }


def guard_trackers(trainer: TrlTrainer, checkpoint_dir: Path) -> None:
    """Put a guard around each tracker of a trainer.

    The guard stops exceptions of the tracker, and rows that the tracker has already logged.
    """
    from transformers.integrations.integration_utils import get_reporting_integration_callbacks

    kinds = {
        kind: name
        for name in trainer.args.report_to
        for kind in get_reporting_integration_callbacks([name])
    }
    if not kinds:
        return
    state = _State.read(checkpoint_dir)
    handler = trainer.callback_handler
    handler.callbacks = [
        _guarded(callback, kinds[type(callback)], state, checkpoint_dir)
        if type(callback) in kinds
        else callback
        for callback in handler.callbacks
    ]


def failed_trackers(checkpoint_dir: Path) -> dict[str, str]:
    """The message of each tracker that was dropped during the training, by its name."""
    return _State.read(checkpoint_dir).failed


def _guarded(
    tracker: TrainerCallback, name: str, tracking: _State, checkpoint_dir: Path
) -> TrainerCallback:
    from transformers import TrainerCallback

    class Guard(TrainerCallback):
        def __init__(self) -> None:
            self.active = True

        def forward(
            self,
            event: str,
            args: TrainingArguments,
            state: TrainerState,
            control: TrainerControl,
            **details: Any,
        ) -> None:
            row = event == "on_log" and _is_row(details.get("logs"))
            step = int(state.global_step)
            if not self.active or (row and step <= tracking.logged.get(name, 0)):
                return
            try:
                getattr(tracker, event)(args, state, control, **details)
                if name == "mlflow" and event == "on_train_begin":
                    tracking.mlflow_run = _mlflow_run()
            except Exception as error:  # noqa: BLE001 - a training is worth more than its curves
                cause = f"{type(error).__name__}: {error}".partition("\n")[0]
                tracking.failed[name] = f"failed at step {step}: {cause}"
                print(
                    f"tracker {name} {tracking.failed[name]}; training continues without it",
                    flush=True,
                )
            if row:
                tracking.logged[name] = step
            # After the end, a held-out evaluation would start another run in some trackers.
            self.active = name not in tracking.failed and event != "on_train_end"
            if row or event == "on_train_begin" or not self.active:
                tracking.write(checkpoint_dir)

    for event in (name for name in dir(TrainerCallback) if name.startswith("on_")):
        setattr(Guard, event, partialmethod(Guard.forward, event))
    return Guard()


def _is_row(logs: Mapping[str, object] | None) -> bool:
    """Whether logged values are a row of training, and not its summary."""
    return logs is not None and "loss" in logs


def _mlflow_run() -> str | None:
    import mlflow

    run = mlflow.active_run()
    return None if run is None else str(run.info.run_id)
