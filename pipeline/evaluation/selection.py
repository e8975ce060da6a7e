"""Choose pairs or trajectories of a file by their ids and facts.

Input: a Parquet or JSONL file, ids, and values of fields. Output: the records that have them, in
order. It reads only the columns with these facts from a Parquet file, and then the row groups that
hold the records. A rare record of a large file is therefore found without reading its tokens.
`steep browse` searches for words.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import fields
from itertools import islice
from pathlib import Path
from typing import Any, TypeVar

from pipeline.core.errors import InputError, Place
from pipeline.core.record_io import iterate_input, parse_record
from pipeline.core.records import Pair, Trajectory
from pipeline.core.row_files import iterate_parquet, parquet_rows

Record = TypeVar("Record", Pair, Trajectory)
# The fields that hold ids, by the kind of record.
IDS: Mapping[type[Any], tuple[str, ...]] = {
    Pair: ("question_id", "chosen_id", "rejected_id"),
    Trajectory: ("question_id", "trajectory_id"),
}


def selected(
    file: Path,
    kind: type[Record],
    limit: int,
    ids: Sequence[str] = (),
    facts: Mapping[str, Collection[object]] | None = None,
) -> Iterator[tuple[int, Record]]:
    """(line or row from 1, record) of the first ``limit`` records with these ids and facts.

    ``ids`` are of questions or trajectories, or their beginnings; without ids all records have
    them. ``facts`` are the values that fields may have. Raises InputError when the file is
    unreadable, a record does not fit ``kind``, or its records lack a field of ``facts``.
    """
    wanted: Mapping[str, Collection[object]] = facts or {}
    begins = tuple(ids)
    known = {field.name for field in fields(kind)}
    if lacking := [name for name in wanted if name not in known]:
        raise InputError(
            f"--{lacking[0]} cannot be used here: a {kind.__name__.lower()} has no "
            f"{lacking[0]}; remove it"
        )

    def kept(record: Mapping[str, Any]) -> bool:
        has_id = not begins or any(str(record.get(name)).startswith(begins) for name in IDS[kind])
        return has_id and all(record.get(name) in values for name, values in wanted.items())

    if file.suffix != ".parquet" or not (begins or wanted):
        chosen = (item for item in iterate_input(file, kind) if kept(item[1]))
        with Place(file) as place:
            for place.line, record in islice(chosen, limit):
                yield place.line, parse_record(kind, record)
        return
    rows = enumerate(iterate_parquet(file, [*IDS[kind], *wanted]))
    numbers = list(islice((number for number, row in rows if kept(row)), limit))
    for number, row in zip(numbers, parquet_rows(file, numbers), strict=True):
        with Place(file, number + 1):
            yield number + 1, parse_record(kind, row)
