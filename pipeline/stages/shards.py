"""Join the shards of a stage: the trajectories in the order of an undivided run, and the sums of
the numbers in JSON files.

Shards of ``score`` are consecutive parts. Shards of ``sample`` take the questions in turns (shard k of
n has questions k, k + n, ...), so their trajectories are joined question by question. Memory: a few
hundred trajectories, and a digest of every trajectory id to check that none is there twice.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import chain, groupby
from pathlib import Path
from typing import Any

from pipeline.core.atomic import write_json
from pipeline.core.content_cache import digest
from pipeline.core.errors import StoreError
from pipeline.core.input_files import read_json
from pipeline.core.progress import counted
from pipeline.core.record_io import iterate_records, write_parquet
from pipeline.core.records import Trajectory
from pipeline.run.context import StageContext
from pipeline.run.store import MANIFEST, read_manifest
from pipeline.stages.trajectory_columns import FILE


def merge(context: StageContext) -> dict[str, int]:
    """Join the trajectories and add up every JSON file of the shards; return the counts.

    Raises StoreError when a trajectory is missing or occurs twice.
    """
    shards = [context.inputs[name] for name in sorted(context.inputs)]
    sampled = context.stage == "sample"
    joined = _in_turns(shards, context.config.sampling.samples) if sampled else _in_a_row(shards)
    counts = _added([read_manifest(shard)["counts"] for shard in shards])
    context.progress.start(int(counts["trajectories"]), "trajectories")
    distinct = counted(_distinct(joined, shards), context.progress)
    written = write_parquet(context.output / FILE, distinct, Trajectory)
    if written != counts["trajectories"]:
        raise StoreError(
            f"{_named(shards)} hold {written} trajectories, and their manifests count "
            f"{counts['trajectories']}; rerun the stage with --force"
        )
    for path in sorted(shards[0].glob("*.json")):
        if path.name != MANIFEST:
            write_json(
                context.output / path.name, _added([read_json(s / path.name) for s in shards])
            )
    context.work["merged_trajectories"] = written
    return {name: int(count) for name, count in counts.items()}


def _in_a_row(shards: Sequence[Path]) -> Iterator[Trajectory]:
    return chain.from_iterable(iterate_records(shard / FILE, Trajectory) for shard in shards)


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


def _added(values: list[Any]) -> Any:
    if all(isinstance(value, Mapping) for value in values):
        keys = dict.fromkeys(key for value in values for key in value)
        return {key: _added([value[key] for value in values if key in value]) for key in keys}
    if all(isinstance(value, (int, float)) and not isinstance(value, bool) for value in values):
        return sum(values)
    return values[0]
