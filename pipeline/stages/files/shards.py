"""Split a stage's work into shards, and join their outputs in the order of an undivided run.

Shards take consecutive rows (`first_and_last`), or the questions in turns: shard k of n has
questions k, k + n, ..., so that each has its share of every data set. Memory of joining
trajectories: a few hundred of them, and a digest of every trajectory id to check that none is there
twice.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import groupby
from pathlib import Path
from typing import Any

from pipeline.core.content_cache import digest
from pipeline.core.errors import StoreError
from pipeline.core.input_files import iterate_parquet
from pipeline.core.progress import counted
from pipeline.core.record_io import iterate_records
from pipeline.core.records import Trajectory
from pipeline.run.context import StageContext
from pipeline.run.store import read_manifest
from pipeline.stages.files.trajectory_columns import FILE

_SHARD = "shard-"  # of the names of inputs that are shards


def first_and_last(count: int, shard: int, shards: int) -> tuple[int, int]:
    """The first of ``count`` rows that a shard has, and the row after its last."""
    return count * shard // shards, count * (shard + 1) // shards


def shard_directories(context: StageContext) -> list[Path]:
    """The outputs of the shards that a stage joins, in their order."""
    return [context.inputs[name] for name in sorted(context.inputs) if name.startswith(_SHARD)]


def shard_counts(context: StageContext) -> dict[str, int]:
    """The sums of the counts that the shards' manifests hold."""
    counts = added([read_manifest(shard)["counts"] for shard in shard_directories(context)])
    return {name: int(count) for name, count in counts.items()}


def question_numbers(file: Path) -> list[int]:
    """The question of each trajectory of a Parquet file, as its number by first occurrence."""
    numbers: dict[str, int] = {}
    rows = iterate_parquet(file, ["question_id"])
    return [numbers.setdefault(row["question_id"], len(numbers)) for row in rows]


def joined_trajectories(
    context: StageContext, *, samples: int = 1, source: Path | None = None
) -> Iterator[Trajectory]:
    """The trajectories of the shards, which are counted in ``context.progress``.

    The shards have the questions in turns, with ``samples`` trajectories for each question, or
    those of ``source``, a file of trajectories in the order of an undivided run. Raises StoreError
    when a trajectory is missing or occurs twice.
    """
    shards = shard_directories(context)
    expected = shard_counts(context)["trajectories"]
    context.progress.start(expected, "trajectories")
    joined = _in_turns(shards, samples) if source is None else _as_in(source, shards)
    written = 0
    for trajectory in counted(_distinct(joined, shards), context.progress):
        written += 1
        yield trajectory
    if written != expected:
        raise StoreError(
            f"{_named(shards)} hold {written} trajectories, and their manifests count {expected}; "
            "rerun the stage with --force"
        )


def _as_in(source: Path, shards: Sequence[Path]) -> Iterator[Trajectory]:
    """The trajectories in the order of ``source``."""
    parts = [iterate_records(shard / FILE, Trajectory) for shard in shards]
    for row, number in enumerate(question_numbers(source), start=1):
        shard = number % len(parts)
        trajectory = next(parts[shard], None)
        if trajectory is None:
            raise StoreError(
                f"{shards[shard]} has no trajectory for row {row} of {source}; rerun the stage "
                "with --force"
            )
        yield trajectory


def _in_turns(shards: Sequence[Path], samples: int) -> Iterator[Trajectory]:
    """One question of each shard after the other, with a check of its samples."""
    questions = [
        groupby(
            iterate_records(shard / FILE, Trajectory),
            key=lambda trajectory: trajectory.question_id,
        )
        for shard in shards
    ]
    ended = False
    remaining = True
    while remaining:
        remaining = False
        for shard, of_shard in zip(shards, questions, strict=True):
            question_id, group = next(of_shard, (None, iter(())))
            trajectories = list(group)
            remaining = remaining or question_id is not None
            if question_id is None:
                ended = True
            elif ended:
                raise StoreError(
                    f"{_named(shards)} do not hold the questions in turns: {shard} goes on with "
                    f"{question_id} after another shard has ended; rerun the stage with --force"
                )
            elif [trajectory.sample for trajectory in trajectories] != list(range(samples)):
                raise StoreError(
                    f"{shard / FILE}: question {question_id} has the samples "
                    f"{[trajectory.sample for trajectory in trajectories]}; expected 0 to "
                    f"{samples - 1} once each; rerun the stage with --force"
                )
            yield from trajectories


def _distinct(trajectories: Iterator[Trajectory], shards: Sequence[Path]) -> Iterator[Trajectory]:
    seen: set[bytes] = set()
    for trajectory in trajectories:
        key = digest(trajectory.trajectory_id)
        if key in seen:
            raise StoreError(
                f"{_named(shards)} hold trajectory {trajectory.trajectory_id} twice; "
                "rerun the stage with --force"
            )
        seen.add(key)
        yield trajectory


def _named(shards: Sequence[Path]) -> str:
    return f"{shards[0]} and the other {len(shards) - 1} shards"


def added(values: Sequence[Any]) -> Any:
    """The sum of numbers, or of the numbers in mappings by their key; else the first value."""
    if all(isinstance(value, Mapping) for value in values):
        keys = dict.fromkeys(key for value in values for key in value)
        return {key: added([value[key] for value in values if key in value]) for key in keys}
    if all(isinstance(value, (int, float)) and not isinstance(value, bool) for value in values):
        return sum(values)
    return values[0]
