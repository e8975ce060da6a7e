"""Checkpoints that a killed training run continues from, to the same bytes.

Input: the checkpoints that Trainer writes. Output: the newest complete one. A checkpoint is
complete when it holds ``complete.json``, which is written last, after all processes have saved
their part and everything is on the disk. That file holds the hash of every other file, so a torn or
damaged checkpoint is recognized and the one before it is used. Older checkpoints are deleted only
when a newer one is complete.
"""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import TYPE_CHECKING

from pipeline.core.atomic import sync_all, write_json
from pipeline.core.errors import InputError
from pipeline.core.input_files import read_json
from pipeline.core.model_files import file_hash

if TYPE_CHECKING:
    from transformers import TrainerCallback, TrainerControl, TrainerState, TrainingArguments

CHECKPOINTS = "checkpoints"  # below the stage's checkpoint directory
COMPLETE = "complete.json"
STATE = "trainer_state.json"  # Trainer's name for its state


def last_checkpoint(checkpoint_dir: Path) -> Path | None:
    """The newest complete checkpoint below ``checkpoint_dir``, or None."""
    return next((path for path in _newest_first(checkpoint_dir) if is_complete(path)), None)


def is_complete(checkpoint: Path) -> bool:
    """Whether all files of a checkpoint are there with the content that was written."""
    try:
        return bool(read_json(checkpoint / COMPLETE) == _hashes(checkpoint))
    except (InputError, OSError):
        return False


def delete_others(checkpoint_dir: Path, kept: Path | None) -> None:
    """Delete all checkpoints except ``kept``."""
    for path in _newest_first(checkpoint_dir):
        if path != kept:
            (path / COMPLETE).unlink(missing_ok=True)
            shutil.rmtree(path)


def _newest_first(checkpoint_dir: Path) -> list[Path]:
    paths = (checkpoint_dir / CHECKPOINTS).glob("checkpoint-*")
    numbered = [path for path in paths if path.name.rpartition("-")[2].isdecimal()]
    return sorted(numbered, key=lambda path: -int(path.name.rpartition("-")[2]))


def _hashes(checkpoint: Path) -> dict[str, str]:
    return {
        path.relative_to(checkpoint).as_posix(): file_hash(path)
        for path in sorted(checkpoint.rglob("*"))
        if path.is_file() and path.name != COMPLETE
    }


def checkpoint_callback(checkpoint_dir: Path) -> TrainerCallback:
    """A Trainer callback that completes every checkpoint and then deletes the older ones."""
    from accelerate import PartialState
    from transformers import TrainerCallback

    class Completer(TrainerCallback):
        def on_save(
            self,
            args: TrainingArguments,
            state: TrainerState,
            control: TrainerControl,
            **_: object,
        ) -> None:
            PartialState().wait_for_everyone()  # every process writes its random state
            if state.is_world_process_zero:
                path = checkpoint_dir / CHECKPOINTS / f"checkpoint-{state.global_step}"
                sync_all(path)
                write_json(path / COMPLETE, _hashes(path))
                delete_others(checkpoint_dir, kept=path)

    return Completer()
