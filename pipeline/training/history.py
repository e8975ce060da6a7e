"""The log of a training run, its progress and its stop rule.

Input: the numbers that a TRL trainer logs. Output: ``log.json`` with ``history`` (one row per
logging step: step, epoch, loss and its terms, chosen and rejected log-probabilities, margins,
accuracies, lengths), the mean loss, and what training changed. DPO may lower the log-probability of
*chosen* answers as long as rejected ones fall faster, which ends in repetition and collapse. A run
whose chosen answers fall too far below the reference is therefore stopped with an error. Steps and
the last logged terms of the loss are also reported as progress.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeGuard

from pipeline.core.atomic import write_json
from pipeline.core.errors import TrainingError
from pipeline.core.progress import Progress

if TYPE_CHECKING:
    from transformers import TrainerCallback, TrainerControl, TrainerState

WINDOW = 5  # logged rows that the stop rule averages: one batch of 16 pairs is too noisy
# Nats per sequence that log p(chosen) may lie below the reference, as the mean of WINDOW rows. No
# shipped configuration changes it, because the remedy is another learning rate, beta or eta.
MAX_CHOSEN_DROP = 20.0
RECORDER = "Recorder"  # the name of the callback in checkpoints
_TIMES = ("step_time",)  # seconds, which differ between equal runs
DROP = "logps/chosen_below_reference"
_SHOWN = {  # keys of TRL's logs -> names beside the bar
    "loss": "loss",
    "rewards/margins": "margin",
    "rewards/accuracies": "accuracy",
    "kl": "kl",
    "entropy": "entropy",
}


class History:
    """Rows of a training run, its stop rule and its learning rates.

    ``steps`` is the number of optimizer steps so far and ``highest_rate`` the highest learning rate
    that one of them used. ``progress`` counts them, and what comes before them.
    """

    def __init__(self, progress: Progress | None = None) -> None:
        self.progress = progress or Progress()
        self.rows: list[dict[str, float]] = []
        self.steps = 0
        self.highest_rate = 0.0

    def add(self, step: int, logs: Mapping[str, object]) -> None:
        """Record one log call.

        Raises TrainingError when the loss or the gradient norm is not finite, or when the stop rule
        applies.
        """
        if "loss" not in logs:
            return
        for key in ("loss", "grad_norm"):
            value = logs.get(key, 0.0)
            if not (_is_number(value) and math.isfinite(value)):
                raise TrainingError(
                    f"{key} is {value} at step {step}; lower the learning rate, or train in float32"
                )
        self.rows.append(_row(step, logs))
        self._check_drop(step)

    def count_step(self, step: int, rate: float) -> None:
        """Count an optimizer step that used a learning rate."""
        self.steps = step
        self.highest_rate = max(self.highest_rate, rate)

    def _check_drop(self, step: int) -> None:
        recent = [row[DROP] for row in self.rows[-WINDOW:] if DROP in row]
        if len(recent) < WINDOW:
            return
        drop = sum(recent) / len(recent)
        if drop > MAX_CHOSEN_DROP:
            raise TrainingError(
                f"log p(chosen) fell {drop:.1f} nats per sequence below the reference (mean of "
                f"{WINDOW} steps up to step {step}), more than {MAX_CHOSEN_DROP:g}; lower "
                "dpo.learning_rate or dpo.round_epochs, or raise dpo.beta or dpo.eta"
            )

    def resume(self, state: Mapping[str, Any]) -> None:
        """Restore everything from the JSON of a checkpoint's trainer state."""
        self.rows = [_row(row["step"], row) for row in state["log_history"] if "loss" in row]
        self.steps = state["global_step"]
        self.highest_rate = state["stateful_callbacks"][RECORDER]["attributes"]["highest_rate"]

    def mean_loss(self) -> float:
        """The mean loss over all steps; a row is the mean of the steps since the row before."""
        total, before = 0.0, 0.0
        for row in self.rows:
            total += row["loss"] * (row["step"] - before)
            before = row["step"]
        return total / before if before else 0.0

    def line(self) -> str:
        """The loss of the first and of the last row, in one line for the stage's log."""
        if not self.rows:
            return "no row was logged"
        return f"loss {self.rows[0]['loss']:.4f} at first, {self.rows[-1]['loss']:.4f} at last"

    def write(self, path: Path, **extra: object) -> None:
        """Write ``{"history": rows, "mean_loss": ..., **extra}`` as JSON.

        It holds no times, so that equal runs give equal bytes.
        """
        write_json(path, {"history": self.rows, "mean_loss": self.mean_loss(), **extra})


def _row(step: int, logs: Mapping[str, object]) -> dict[str, float]:
    """A row of the log, ``step`` first and then by name, as a checkpoint has it too.

    Averages over zero tokens (of clipped ones, for example) are NaN and omitted.
    """
    numbers = {
        key: float(value)
        for key, value in sorted(logs.items())
        if _is_number(value) and math.isfinite(value) and key not in ("step", *_TIMES)
    }
    return {"step": step, **numbers}


def _is_number(value: object) -> TypeGuard[int | float]:
    return isinstance(value, int | float) and not isinstance(value, bool)


def history_callback(history: History) -> TrainerCallback:
    """A Trainer callback that records into ``history``, in checkpoints too, and its progress."""
    from transformers import TrainerCallback
    from transformers.trainer_callback import ExportableState

    class Recorder(TrainerCallback, ExportableState):
        def state(self) -> dict[str, dict[str, float]]:
            return {"args": {}, "attributes": {"highest_rate": history.highest_rate}}

        def on_train_begin(
            self, args: object, state: TrainerState, control: object, **_: object
        ) -> None:
            history.progress.start(state.max_steps, "steps", done=state.global_step)

        def on_optimizer_step(
            self, args: object, state: TrainerState, control: object, **kwargs: Any
        ) -> None:
            rate = float(kwargs["optimizer"].param_groups[0]["lr"])
            history.count_step(state.global_step + 1, rate)

        def on_step_end(
            self, args: object, state: TrainerState, control: TrainerControl, **_: object
        ) -> None:
            history.progress.advance()
            if state.global_step >= state.max_steps:
                control.should_log = True  # the last row may cover fewer steps

        def on_log(
            self,
            args: object,
            state: TrainerState,
            control: object,
            logs: Mapping[str, object] | None = None,
            **_: object,
        ) -> None:
            logged = dict(logs or {})
            history.add(state.global_step, logged)
            shown = {name: logged.get(key) for key, name in _SHOWN.items()}
            history.progress.show(**{n: float(v) for n, v in shown.items() if _is_number(v)})

    Recorder.__name__ = RECORDER
    return Recorder()
