"""Training curves in TensorBoard, W&B, MLflow or trackio, through the integrations of transformers.

Input: the names of trackers. Output: arguments of a trainer (``report_to`` and a name for its run),
and after its construction a guard around each tracker: a tracker that fails (no network, no login,
a full disk) must not end a training, so it is dropped with a line in the log. A training that
continues after a kill has the name of its first start, and sends the rows since its last checkpoint
again.
"""

from __future__ import annotations

import importlib
import importlib.util
import os
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partialmethod
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pipeline.core.errors import DependencyError
from pipeline.training.trl_types import TrlTrainer

if TYPE_CHECKING:
    from transformers import TrainerCallback

PROJECT = "steep"  # the project or experiment, unless an environment variable names another


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


def check_trackers(trackers: Sequence[str]) -> None:
    """Raise DependencyError when the package of a tracker is missing."""
    missing = [name for name in trackers if not installed_package(name)]
    if missing:
        names = " ".join(missing)
        raise DependencyError(
            f"trackers names {', '.join(missing)}, and no such package is installed; pip install "
            f"{names}, or remove it from trackers"
        )


def installed_package(package: str) -> bool:
    """Whether a package can be imported; a directory of its name (such as ``wandb/``) cannot."""
    found = importlib.util.find_spec(package)
    return found is not None and found.origin is not None


def reporting(tracking: Tracking | None, checkpoint_dir: Path) -> dict[str, object]:
    """Arguments of a trainer that make it log to trackers.

    Only the main process logs. Sets environment variables that the integrations read. A variable
    that the user has set is kept. Raises DependencyError when a package is missing or broken.
    """
    if tracking is None or not tracking.trackers or os.environ.get("RANK", "0") != "0":
        return {"report_to": "none"}
    check_trackers(tracking.trackers)
    directory = tracking.directory.absolute()
    directory.mkdir(parents=True, exist_ok=True)
    key = checkpoint_dir.name.partition(".")[0]  # the stage's fingerprint
    os.environ["TENSORBOARD_LOGGING_DIR"] = str(directory / tracking.label / key)
    os.environ["WANDB_RUN_ID"] = f"{tracking.run}-{tracking.label}-{key}"
    os.environ["WANDB_RESUME"] = "allow"
    defaults = {
        "WANDB_PROJECT": PROJECT,
        "WANDB_DIR": str(directory),
        "MLFLOW_EXPERIMENT_NAME": PROJECT,
        "MLFLOW_TRACKING_URI": f"sqlite:///{directory / 'mlflow.db'}",
        "TRACKIO_DIR": str(directory / "trackio"),
    }
    for name, value in defaults.items():
        os.environ.setdefault(name, value)
    for name in tracking.trackers:  # after the variables, which some read at their import
        try:
            importlib.import_module(name)
        except ImportError as error:
            raise DependencyError(
                f"the package of tracker {name} cannot be imported ({error}); install it again, or "
                "remove it from trackers"
            ) from None
    return {
        "report_to": list(tracking.trackers),
        "run_name": f"{tracking.run}/{tracking.label}/{key}",
        "project": os.environ.get("TRACKIO_PROJECT", PROJECT),
    }


def guard_trackers(trainer: TrlTrainer) -> None:
    """Put a guard around each tracker of a trainer, which stops its exceptions."""
    from transformers.integrations.integration_utils import get_reporting_integration_callbacks

    names = {
        kind: name
        for name in trainer.args.report_to
        for kind in get_reporting_integration_callbacks([name])
    }
    handler = trainer.callback_handler
    handler.callbacks = [
        _guarded(callback, names[type(callback)]) if type(callback) in names else callback
        for callback in handler.callbacks
    ]


def _guarded(tracker: TrainerCallback, name: str) -> TrainerCallback:
    from transformers import TrainerCallback

    class Guard(TrainerCallback):
        active = True

        def forward(self, event: str, args: Any, state: Any, control: Any, **details: Any) -> None:
            if not self.active:
                return
            # After the end, a held-out evaluation would start another run in some trackers.
            self.active = event != "on_train_end"
            try:
                getattr(tracker, event)(args, state, control, **details)
            except Exception as error:  # noqa: BLE001 - a training is worth more than its curves
                self.active = False
                cause = f"{type(error).__name__}: {error}".partition("\n")[0]
                print(
                    f"tracker {name} failed at step {state.global_step}: {cause}; training "
                    "continues without it",
                    flush=True,
                )

    for event in (name for name in dir(TrainerCallback) if name.startswith("on_")):
        setattr(Guard, event, partialmethod(Guard.forward, event))
    return Guard()
