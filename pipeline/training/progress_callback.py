"""A Trainer callback that reports optimizer steps and the last logged terms of the loss.

Input: the numbers that a TRL trainer logs. Output: reports to a `pipeline.core.progress.Progress`.
Only in the main process does it write anything.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from pipeline.core.progress import Progress

if TYPE_CHECKING:
    from transformers import TrainerCallback, TrainerState

_SHOWN = {  # keys of TRL's logs -> names beside the bar
    "loss": "loss",
    "rewards/margins": "margin",
    "rewards/accuracies": "accuracy",
    "kl": "kl",
    "entropy": "entropy",
}


def shown_values(logs: Mapping[str, object]) -> dict[str, float]:
    """The logged numbers that are shown, by their names there."""
    return {
        name: float(value)
        for key, name in _SHOWN.items()
        if isinstance(value := logs.get(key), int | float) and not isinstance(value, bool)
    }


def progress_callback(progress: Progress) -> TrainerCallback:
    """A callback that starts ``progress`` with the number of steps, and advances it after each."""
    from transformers import TrainerCallback

    class Reporter(TrainerCallback):
        def on_train_begin(
            self, args: object, state: TrainerState, control: object, **_: object
        ) -> None:
            progress.start(state.max_steps, "steps", done=state.global_step)

        def on_step_end(
            self, args: object, state: TrainerState, control: object, **_: object
        ) -> None:
            progress.advance()

        def on_log(
            self,
            args: object,
            state: TrainerState,
            control: object,
            logs: Mapping[str, object] | None = None,
            **_: object,
        ) -> None:
            progress.show(**shown_values(logs or {}))

    return Reporter()
