"""A run of a small random model with trained policies, written into its store without running a stage."""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from pipeline.core.model_files import model_hash
from pipeline.core.record_io import write_parquet
from pipeline.core.records import Question
from pipeline.engine.stage import StageTask
from pipeline.training.lineage import Lineage, policy_fingerprint
from tasks import task_for
from tasks.policy import policy
from tests.llm.small_models import small_adapter

QUESTIONS = [Question(f"q{n}", "toy", f"Where is city {n}?", ["Rome"], "single") for n in range(4)]
_FINISHED = ("corpus", "questions-test", "graph")


def settings(model: Path, longest: int, *others: str) -> tuple[str, ...]:
    """Overrides of ``embedded`` for ``model``, whose texts have at most ``longest`` tokens."""
    return (
        f"model.base={model}",
        f"engine={{kind: transformers, dtype: float32, max_model_len: {longest}}}",
        "retrieval.variant=none",
        "sampling={max_segment_tokens: 6, batch: 2}",
        *others,
    )


def finished_run(overrides: tuple[str, ...], model: Path, rounds: Iterable[int]) -> StageTask:
    """The stage ``evaluate`` after complete stages of questions, and policies of ``rounds``; 0 is SFT."""
    task = task_for("evaluate", "embedded", overrides)
    for stage in _FINISHED:
        commit(task_for(stage, "embedded", overrides))
    for number in rounds:
        commit_policy(policy(task, number), model, seed=number)
    return task


def commit(task: StageTask) -> Path:
    """Complete a stage with `QUESTIONS` as its output."""
    folder = task.settings.run_dir / "written"
    write_parquet(folder / "questions.parquet", QUESTIONS, Question)
    return _complete(task, folder)


def commit_policy(task: StageTask, model: Path, seed: int) -> Path:
    """Complete a stage that trains a policy with a random adapter of ``model``."""
    folder = task.settings.run_dir / "written"
    adapter, sha = small_adapter(model, folder / "adapter", seed), model_hash(model)
    name = policy_fingerprint(adapter, sha)
    Lineage(name, str(model), sha, None, None, 0, "sft", {}, seed=0, counts={}).write(folder)
    return _complete(task, folder)


def commit_text(task: StageTask, text: str, file: str = "text.txt", **facts: Any) -> Path:
    """Complete a stage with a text file as its output, and with ``facts`` in its manifest."""
    folder = task.settings.run_dir / "written"
    folder.mkdir(parents=True)
    (folder / file).write_text(text)
    return _complete(task, folder, **facts)


def _complete(task: StageTask, folder: Path, **facts: Any) -> Path:
    task.directory.parent.mkdir(parents=True, exist_ok=True)
    return task.store.commit(task.key, folder, {"counts": {"rows": 1}, **facts})


def leave_configuration(task: StageTask) -> Path:
    """Write the configuration of a run into its directory, as a run does."""
    path = task.settings.run_dir / "config.yaml"
    path.write_text(json.dumps(task.settings.model_dump(mode="json")))  # JSON is YAML
    return path
