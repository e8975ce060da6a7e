"""Find the policy that a user names: its number, ``base``, ``RUN:NUMBER``, or a directory."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from pipeline.config.evaluation import BASE
from pipeline.config.run import SFT
from pipeline.core.errors import InputError, StoreError
from pipeline.engine.job import check_output, run_command
from pipeline.engine.stage import RESOLVED, Outputs, StageTask, left_by
from pipeline.evaluation.policy_names import policy_in_text
from tasks.policy import policy

NAMES = "the number of a policy (0: SFT), base, RUN:NUMBER (such as embedded:2), or a directory"
# As typed, as in metrics.json, and as pages show it.
_NUMBER = re.compile(r"(?:round-|policy[ -])?([0-9]{1,4})(?: \(\w+\))?", re.IGNORECASE)


@dataclass(frozen=True)
class NamedPolicy:
    """A policy to evaluate.

    ``directory`` is None for the base model. ``number`` is the number of a policy of the
    configuration itself (0 is SFT). ``source`` says in words which output was taken.
    """

    name: str
    directory: Path | None
    source: str
    number: int | None = None


def find_policy(task: StageTask, name: str) -> NamedPolicy:
    """The policy ``name``, which is one of `NAMES`, for the configuration of ``task``.

    Raises InputError for another name, StoreError when the training stage is not complete.
    """
    settings = task.settings
    if name == BASE:
        own = 0 if settings.start == BASE else None
        return NamedPolicy(name, None, f"model.base ({settings.model.base}), untrained", own)
    if name == SFT != settings.start:
        raise InputError(
            f"--policy names sft, and start is {settings.start}, so that the run has no policy 0 "
            f"(SFT); name {settings.policy_name(0)}"
        )
    number = 0 if name == settings.policy_name(0) else _number(name)
    if number is not None:
        return _own(task, number, Outputs())
    if name and Path(name).is_dir():
        return NamedPolicy(name.rstrip("/") or name, Path(name), name)
    run, colon, round = name.rpartition(":")
    number = _number(round)
    if colon and run and number is not None:
        return _of_run(task, run, number)
    raise InputError(f"--policy is {name!r}, and there is no such directory; expected {NAMES}")


def complete_policies(task: StageTask) -> list[NamedPolicy]:
    """The trained policies of a configuration whose stages are complete, in order of training.

    Before any training it is the base model if the run starts from that. Raises StoreError when
    there is none.
    """
    numbers, outputs = range(task.settings.rounds + 1), Outputs()
    found = [_own(task, each, outputs) for each in numbers if outputs.of(policy(task, each))]
    if not found and task.settings.start == BASE:
        found = [find_policy(task, BASE)]
    if not found:
        raise StoreError(
            f"no policy of {task.settings.run_dir} is trained; train one with "
            f"`{run_command(policy(task, 0))}`, or name another with --policy"
        )
    return found


def finished(stages: Mapping[str, StageTask]) -> dict[str, Path]:
    """The directories of stages by name.

    Raises StoreError when one is not complete, with the command that makes the last such stage and
    what it needs, or when one is damaged.
    """
    for stage in reversed(list(stages.values())):
        if not stage.complete():
            raise StoreError(
                f"{stage.label} of {stage.settings.run_dir} is not complete, and only finished "
                f"questions and indexes are searched; run `{run_command(stage)}` first"
            )
        check_output(stage)
    return {name: stage.directory for name, stage in stages.items()}


def _number(text: str) -> int | None:
    """The number of ``sft``, ``2``, ``round-2`` or ``Policy 2``; None for other text."""
    if text == SFT:
        return 0
    found = _NUMBER.fullmatch(text)
    return None if found is None else int(found[1])


def _own(task: StageTask, number: int, outputs: Outputs) -> NamedPolicy:
    name = task.settings.policy_name(number)
    if number > task.settings.rounds:
        raise InputError(
            f"--policy names {policy_in_text(name)}, and rounds is {task.settings.rounds}; name a "
            "policy up to it"
        )
    trained = policy(task, number)
    if not outputs.of(trained):
        raise StoreError(
            f"{policy_in_text(name)} of {task.settings.run_dir} is not trained: {trained.label} is "
            f"not complete; make it with `{run_command(trained)}`"
        )
    directory = outputs.directory(trained)
    return NamedPolicy(name, directory, str(directory), number)


def _of_run(task: StageTask, run: str, number: int) -> NamedPolicy:
    """A policy of another run, by the configuration that the run left."""
    places = [Path(run), Path(task.settings.runs_dir) / run]
    directory = next((place for place in places if (place / RESOLVED).is_file()), None)
    if directory is None:
        raise InputError(
            f"--policy names run {run}, and neither {places[0]} nor {places[1]} is the directory "
            f"of a run with its {RESOLVED}; expected {NAMES}"
        )
    found = _own(left_by(directory), number, Outputs())
    return replace(found, name=f"{directory.resolve().name}:{found.name}", number=None)
