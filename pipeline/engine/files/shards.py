"""Split a stage's work into shards, and join their outputs in the order of an undivided run.

Shards take consecutive rows (`first_and_last`), or the questions in turns: shard k of n has
questions k, k + n, ..., so that each has its share of every data set.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from itertools import zip_longest
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from pipeline.core.atomic import parquet_writer
from pipeline.core.errors import StoreError
from pipeline.core.record_io import ROWS_PER_GROUP, arrow_schema
from pipeline.core.records import Trajectory
from pipeline.core.row_files import iterate_parquet, parquet_batches
from pipeline.core.trajectory_file import FILE
from pipeline.engine.context import StageContext
from pipeline.engine.store import SHARD, read_manifest

if TYPE_CHECKING:
    import pyarrow as pa


def first_and_last(count: int, shard: int, shards: int) -> tuple[int, int]:
    """The first of ``count`` rows that a shard has, and the row after its last."""
    return count * shard // shards, count * (shard + 1) // shards


def shard_directories(context: StageContext) -> list[Path]:
    """The outputs of the shards that a stage joins, in their order."""
    return [context.inputs[name] for name in sorted(context.inputs) if name.startswith(SHARD)]


def shard_counts(context: StageContext) -> dict[str, int]:
    """The sums of the counts that the shards' manifests hold."""
    counts = added([read_manifest(shard)["counts"] for shard in shard_directories(context)])
    return {name: int(count) for name, count in counts.items()}


def question_numbers(question_ids: Iterable[str]) -> list[int]:
    """The question of each trajectory, as its number by first occurrence."""
    numbers: dict[str, int] = {}
    return [numbers.setdefault(question_id, len(numbers)) for question_id in question_ids]


def join_trajectories(
    context: StageContext,
    expected: Sequence[tuple[str, int]],
    types: Mapping[str, Any] | None = None,
) -> list[int]:
    """Write the trajectories of the shards to one file, and return the shard of each.

    ``expected`` has the question id and the sample of each trajectory, in the order of an undivided
    run; the shards have the questions in turns. ``types`` are those of `write_parquet`. A group of
    rows is in memory at a time. Raises StoreError when a trajectory is missing or another one takes
    its place.
    """
    import pyarrow as pa

    files = [shard / FILE for shard in shard_directories(context)]
    parts, schema = [_Rows(file) for file in files], arrow_schema(Trajectory, types)
    numbers = question_numbers(question_id for question_id, _ in expected)
    owners = np.array(numbers, dtype=np.int64) % len(files)
    for number, file in enumerate(files):
        rows_of = iterate_parquet(file, ["question_id", "sample"])
        ids = ((row["question_id"], row["sample"]) for row in rows_of)
        wanted = (expected[place] for place in np.flatnonzero(owners == number))
        for one, found in zip_longest(wanted, ids):
            if one != found:
                raise StoreError(
                    f"{file} has {_name(found)} in place of {_name(one)}; rerun the stage with "
                    "--force"
                )
    context.progress.start(len(expected), "trajectories")
    with parquet_writer(context.output / FILE, schema) as writer:
        for start in range(0, len(expected), ROWS_PER_GROUP):
            group = owners[start : start + ROWS_PER_GROUP]
            places, batches = [], []
            for number, rows in enumerate(parts):
                own = np.flatnonzero(group == number).tolist()
                places += own
                batches += rows.take(len(own))
            table = pa.Table.from_batches(batches, schema)
            writer.write_table(table.take(np.argsort(places)))
            context.progress.advance(len(group))
    return [int(owner) for owner in owners]


def _name(row: tuple[str, int] | None) -> str:
    return "no trajectory" if row is None else f"sample {row[1]} of question {row[0]}"


class _Rows:
    """The rows of a Parquet file in their order."""

    def __init__(self, file: Path) -> None:
        self._batches = parquet_batches(file)
        self._next: pa.RecordBatch | None = None

    def take(self, count: int) -> list[pa.RecordBatch]:
        """The next ``count`` rows; fewer at the end of the file."""
        taken = []
        while count and (batch := self._next or next(self._batches, None)):
            taken.append(batch.slice(0, count))
            self._next = batch.slice(count) if batch.num_rows > count else None
            count -= taken[-1].num_rows
        return taken


def added(values: Sequence[Any]) -> Any:
    """The sum of numbers, or of the numbers in mappings by their key; else the first value."""
    if all(isinstance(value, Mapping) for value in values):
        keys = dict.fromkeys(key for value in values for key in value)
        return {key: added([value[key] for value in values if key in value]) for key in keys}
    if all(isinstance(value, (int, float)) and not isinstance(value, bool) for value in values):
        return sum(values)
    return values[0]
