"""The stages of the questions, run without a store."""

from __future__ import annotations

from pathlib import Path

from pipeline.config import Config
from pipeline.run.context import StageContext
from pipeline.stages import questions
from pipeline.stages.questions import HELD_OUT, TRAINED


def run_questions(
    settings: Config, folder: Path, split: str, world: Path | None = None
) -> tuple[StageContext, dict[str, int]]:
    """Run the stage of a split below ``folder``; the splits that train need the held-out ones.

    ``world`` is the directory of the closed world. Returns the stage's context and its counts.
    """
    inputs = {} if world is None else {"world": world}
    if split in TRAINED:
        for heldout in HELD_OUT:
            inputs[f"questions-{heldout}"] = run_questions(settings, folder, heldout, world)[
                0
            ].output
    name = f"questions-{split}"
    output = folder / name
    output.mkdir(parents=True, exist_ok=True)
    context = StageContext(settings, name, output, folder / "checkpoints", inputs)
    return context, questions.run(context)
