"""Checks of the finished training data of a run, without training (`steep check --training`).

Input: a configuration's task. Output: for each round whose pairs or scored trajectories are
complete, and for a finished cold start, the figures and checks of `pipeline.training.preflight`.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pipeline.core.errors import StoreError
from pipeline.core.input_files import read_json
from pipeline.run.store import Depth
from pipeline.stages.files.training_data import PREFLIGHT, as_json, round_facts
from pipeline.training.preflight import Check
from tasks.base import StageTask, walk
from tasks.sft import Sft
from tasks.train import Train


@dataclass(frozen=True)
class CheckedData:
    """The checks of the data of one training stage; ``source`` is the directory of the data."""

    label: str
    source: Path
    figures: dict[str, Any]
    checks: list[Check]


def checked_data(report: StageTask, round: int | None = None) -> list[CheckedData]:
    """The checks of all finished training data, or of one round.

    Raises StoreError when none is finished, with the command that makes it.
    """
    report.run_settings.check_round(round or 0)
    stages = [task for task in walk(report) if isinstance(task, Train)]
    chosen = [task for task in stages if round in (None, task.round_number)]
    found = [] if round is not None else _of_sft(report)
    found += [checked for task in chosen if (checked := _of_round(task)) is not None]
    if not found:
        first = (chosen or stages or [report])[0]
        raise StoreError(
            f"no training data of {report.settings.run_dir} is finished; make some with "
            f"`{_data(first).run_command()}`"
        )
    return found


def _data(task: StageTask) -> StageTask:
    """The stage whose records a training stage reads."""
    inputs = task.inputs
    return inputs.get("pair") or inputs.get("score") or task


def _of_round(task: Train) -> CheckedData | None:
    data = _data(task)
    if not data.complete():
        return None
    data.check_output(Depth.SIZES)
    settings = task.settings
    questions = {
        name: Path(directory)
        for name, directory in task.input_directories().items()
        if name.startswith("questions-")
    }
    facts = round_facts(settings, data.directory, questions)
    checks = facts.checks()
    return CheckedData(task.label, data.directory, as_json(facts, checks), checks)


def _of_sft(report: StageTask) -> list[CheckedData]:
    """The findings of the finished cold start, which counts its examples while tokenizing."""
    sft = report.clone(Sft)
    file = sft.directory / PREFLIGHT
    if not sft.complete() or not file.is_file():  # an earlier version made it
        return []
    figures: dict[str, Any] = read_json(file)
    return [CheckedData("sft", sft.directory, figures, [Check(**c) for c in figures["checks"]])]
