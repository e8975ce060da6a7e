"""Outputs that no configuration names: find them, give the reason, and remove them.

An output is named when a stage of a configuration has its fingerprint, or resolves to its
directory. The shards of a stage are named until the stage is complete, because the joined output
holds their content. The configurations are the given ones, and the resolved ``config.yaml`` of each
run. A store stays as it is while the outputs of its runs are unknown, or a run uses it.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from pipeline.core.errors import ConfigError, InputError, SteepError
from pipeline.engine.removal import Stored, remove, size_and_time, stored
from pipeline.engine.stage import (
    RESOLVED,
    STAGES,
    Outputs,
    PolicyTask,
    RoundTask,
    StageTask,
    left_by,
    walk,
)
from pipeline.engine.store import StageKey, Store, differences

_MOST_REASONS = 3


@dataclass(frozen=True)
class Unnamed:
    """An output or checkpoints that no configuration names; ``directory`` is a path."""

    stage: str
    directory: str
    bytes: int
    age_seconds: int
    reason: str
    removed: bool = False


@dataclass
class Collection:
    """The outputs that were found and removed, and one line for each kept entry with the reason."""

    rows: list[Unnamed] = field(default_factory=list)
    left: list[str] = field(default_factory=list)


@dataclass
class Names:
    """The outputs that configurations name: their keys, and stages with fingerprints.

    Every output of the ``undecided`` stages counts as named, because a file that they read is
    missing.
    """

    keys: list[StageKey] = field(default_factory=list)
    outputs: set[tuple[str, str]] = field(default_factory=set)
    undecided: set[str] = field(default_factory=set)
    joined: set[tuple[str, str]] = field(default_factory=set)  # shards of complete stages
    complete: Outputs = field(default_factory=Outputs)
    added: set[str] = field(default_factory=set)  # task ids

    def add(self, report: StageTask) -> set[Store]:
        """Add all outputs of a configuration; returns the stores of the report.

        Raises SteepError when a needed file is missing.
        """
        needed = self._add(report)
        for task in _further(report, {one.stage for one in needed}):
            try:
                self._add(task)
            except ConfigError:  # the configuration has no such stage
                continue
            except SteepError:
                self.undecided.add(task.stage)
        return {one.store for one in needed}

    def _add(self, last: StageTask) -> list[StageTask]:
        """Add a task and all tasks below it, including tasks with output on another machine.

        Returns those that were not added before.
        """
        needed = []

        def below(one: StageTask) -> dict[str, StageTask]:
            return {} if one.task_id in self.added else one.inputs | self.complete.requires(one)

        for task in (one for one in walk(last, below) if one.task_id not in self.added):
            self.keys.append(task.key)
            # The directory has another fingerprint when the stage reuses an output with the same
            # content.
            directory = self.complete.directory(task)
            self.outputs |= {(task.stage, task.key.fingerprint), (task.stage, directory.name)}
            if self.complete.of(task):
                self.joined |= {(one.stage, one.key.fingerprint) for one in task.shards().values()}
            self.added.add(task.task_id)
            needed.append(task)
        return needed

    @property
    def stages(self) -> set[str]:
        """The stages whose outputs are examined; a store may hold others, which stay."""
        known = {name for name, kind in STAGES.items() if kind.named}
        known |= {key.stage for key in self.keys}
        return known | {f"{stage}-shard" for stage in known}

    def cover(self, output: Stored) -> bool:
        """Whether an output is named."""
        return output.stage in self.undecided or (output.stage, output.fingerprint) in self.outputs

    def reason(self, output: Stored) -> str:
        """Why an output is not named."""
        if (output.stage, output.fingerprint) in self.joined:
            return "the complete stage holds what this shard wrote"
        return _difference(output, self.keys)


def _further(report: StageTask, known: set[str]) -> Iterator[StageTask]:
    """Tasks of the stages that the report does not need, but that a command can name."""
    for stage, kind in STAGES.items():
        of_others = issubclass(kind, PolicyTask) or stage.startswith("questions-")
        if stage in known or not kind.named or of_others:
            continue
        if not issubclass(kind, RoundTask):
            yield report.clone(kind)
            continue
        for number in range(1, report.settings.rounds + 1):
            yield report.clone(kind, round=number)


def collect(
    reports: Sequence[StageTask], runs: Path | None = None, *, removing: bool = False
) -> Collection:
    """Find, and with ``removing`` remove, the outputs that no configuration names.

    ``reports`` are the report tasks of the given configurations. Their runs are examined, and with
    ``runs`` every run below that directory that left its configuration. Raises InputError, before
    anything is removed, when the configuration of an examined run cannot be resolved.
    """
    found, names = Collection(), Names()
    given = {report.settings.run_dir.resolve() for report in reports}
    folders = [Path(report.settings.runs_dir) for report in reports] + ([runs] if runs else [])
    stores = set[Store]()  # of the examined runs
    for report in reports:
        stores |= names.add(report)
    unknown: list[str] = []  # runs whose outputs are unknown
    for run in _runs(folders):
        below = runs is not None and run.parent.resolve() == runs.resolve() and not run.is_symlink()
        wanted = below or run.resolve() in given
        try:
            report = left_by(run).clone(STAGES["report"])
            of_run = names.add(report)
        except FileNotFoundError:
            if run.resolve() not in given:
                unknown.append(
                    f"{run} has no {RESOLVED}, so it is unknown which outputs belong to it; pass "
                    "its configuration with --config"
                )
        except SteepError as error:
            cause = str(error).partition("\n")[0]
            unknown.append(f"the outputs of {run} are unknown: {cause}")
            if wanted and removing:
                raise InputError(f"{unknown[-1]}; nothing was removed") from None
        else:
            stores |= of_run if wanted else set()
    found.left += unknown if runs is not None else []
    for store in sorted(stores, key=lambda store: store.root):
        shared = not any(folder.resolve() in store.root.resolve().parents for folder in folders)
        blocked = f"all runs share it, and {unknown[0]}" if unknown and shared else None
        _collect(store, names, found, blocked, removing)
    return found


def _runs(folders: Iterable[Path]) -> Iterator[Path]:
    """The directories of runs; links to directories count."""
    for folder in {folder.resolve(): folder for folder in folders if folder.is_dir()}.values():
        yield from (run for run in sorted(folder.iterdir()) if (run / "store").is_dir())


def _collect(
    store: Store, names: Names, found: Collection, blocked: str | None, removing: bool
) -> None:
    """Add the unnamed outputs of one store; they are removed unless ``blocked`` has a reason."""
    outputs = list(stored(store, names.stages))
    found.left += [output for output in outputs if isinstance(output, str)]
    unnamed = [one for one in outputs if isinstance(one, Stored) and not names.cover(one)]
    if not unnamed:
        return
    with store.used(alone=True) as unused:
        blocked = blocked or (None if unused else "a run uses it")
        for output in unnamed:
            size, written = size_and_time(output.path)
            problem = remove(store, output) if removing and not blocked else None
            found.left += [problem] if problem else []
            found.rows.append(
                Unnamed(
                    output.stage,
                    str(output.path),
                    size,
                    max(0, round(time.time() - written)),
                    names.reason(output),
                    removed=removing and not blocked and not problem,
                )
            )
    if blocked:
        found.left.append(f"nothing can be removed from {store.root}: {blocked}")


def _difference(output: Stored, keys: Sequence[StageKey]) -> str:
    """The differences between an output and the most similar output of a configuration."""
    if output.manifest is None:
        return "checkpoints of an unfinished stage, under settings that no configuration has"
    number = output.manifest["key"].get("round")
    same = [key for key in keys if (key.stage, key.round) == (output.stage, number)]
    if not same:
        which = "this stage" if number is None else f"this stage with number {number}"
        return f"no configuration has {which}"
    found = (differences(key, output.manifest) for key in same)
    lines = min(
        ([*own, *(f"made from another {name}" for name in names)] for own, names in found), key=len
    )
    more = len(lines) - _MOST_REASONS
    return "; ".join(lines[:_MOST_REASONS] + ([f"{more} more"] if more > 0 else []))
