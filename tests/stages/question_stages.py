"""Stages before a policy is sampled, run without a store, and the inputs of a stage that samples."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from pipeline.config import Config
from pipeline.core.record_io import write_parquet
from pipeline.core.records import Question
from pipeline.engine.context import StageContext
from tasks import questions
from tasks.questions import HELD_OUT, TRAINED
from tests.llm.small_models import small_adapter, small_model


def stage_context(
    folder: Path, stage: str, settings: Config, inputs: Mapping[str, Path] = {}, **fields: Any
) -> StageContext:
    """The context of a stage that writes into ``folder/output``, with checkpoints beside it."""
    for name in ("output", "checkpoints"):
        (folder / name).mkdir(parents=True, exist_ok=True)
    return StageContext(
        settings, stage, folder / "output", folder / "checkpoints", dict(inputs), **fields
    )


def run_questions(
    settings: Config, folder: Path, split: str, world: Path | None = None
) -> tuple[StageContext, dict[str, int]]:
    """Run the stage of a split below ``folder``; the splits that train need the held-out ones.

    ``world`` is the directory of the closed world. Returns the stage's context and its counts.
    """
    inputs = {} if world is None else {"world": world}
    if split in TRAINED:
        for heldout in HELD_OUT:
            stage, _ = run_questions(settings, folder, heldout, world)
            inputs[f"questions-{heldout}"] = stage.output
    name = f"questions-{split}"
    output = folder / name
    output.mkdir(parents=True, exist_ok=True)
    context = StageContext(settings, name, output, folder / "checkpoints", inputs)
    return context, questions.run(context)


def run_stages(
    settings: Config, folder: Path, inputs: dict[str, Path], stages: Mapping[str, Any]
) -> dict[str, int]:
    """Run modules of stages in turn, each below ``folder`` and as an input of those after it.

    Returns the counts of the last one.
    """
    counts: dict[str, int] = {}
    for name, stage in stages.items():
        (folder / name).mkdir()
        counts = stage.run(StageContext(settings, name, folder / name, folder, dict(inputs)))
        inputs[name] = folder / name
    return counts


def sampling_inputs(root: Path, questions: Sequence[Question]) -> dict[str, Path]:
    """The directories of questions, a random base model, and a random policy over it."""
    model = small_model(root / "model")
    small_adapter(model, root / "policy" / "adapter")
    lineage = {"policy": "fingerprint", "grammar": "tearag", "format": "tags"}
    (root / "policy" / "lineage.json").write_text(json.dumps(lineage))
    write_parquet(root / "questions" / "questions.parquet", questions, Question)
    return {"questions": root / "questions", "policy": root / "policy", "model": model}
