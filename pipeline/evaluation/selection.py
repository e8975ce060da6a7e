"""Choose pairs or trajectories of a file by their ids and facts.

Input: a Parquet or JSONL file and a `Selection`. Output: the records that it keeps, in order. It
reads only the columns with these facts from a Parquet file, and then the row groups that hold the
records. A rare record of a large file is therefore found without reading its tokens.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, fields
from itertools import islice
from pathlib import Path
from typing import Any, TypeVar

from pipeline.core.errors import InputError, Place
from pipeline.core.input_files import iterate_parquet, parquet_rows
from pipeline.core.record_io import iterate_input, parse_record
from pipeline.core.records import Pair, Trajectory

Record = TypeVar("Record", Pair, Trajectory)
# The fields that hold ids, by the kind of record.
IDS: Mapping[type[Any], tuple[str, ...]] = {
    Pair: ("question_id", "chosen_id", "rejected_id"),
    Trajectory: ("question_id", "trajectory_id"),
}
# The fields of a selection that compare one field of a record.
_FACTS = {"kinds": "kind", "rounds": "round", "stops": "stop"}


@dataclass(frozen=True)
class Selection:
    """Conditions on records; an empty field sets none, and so does an empty selection.

    ``ids`` are of questions or trajectories, or their beginnings. Words are searched by `browse`.
    """

    ids: Collection[str] = ()
    kinds: Collection[str] = ()
    rounds: Collection[int] = ()
    stops: Collection[str] = ()

    def __bool__(self) -> bool:
        """Whether it asks for anything."""
        return any(getattr(self, field.name) for field in fields(self))

    def facts(self, kind: type[Any]) -> list[str]:
        """The fields of a record that decide; raises InputError if records of ``kind`` lack one."""
        used = [name for asked, name in _FACTS.items() if getattr(self, asked)]
        known = {field.name for field in fields(kind)}
        if lacking := [name for name in used if name not in known]:
            raise InputError(
                f"--{lacking[0]} cannot be used here: a {kind.__name__.lower()} has no "
                f"{lacking[0]}; remove it"
            )
        return [*IDS[kind], *used]

    def keeps(self, kind: type[Any], record: Mapping[str, Any]) -> bool:
        """Whether it keeps a record of ``kind``, given as JSON values."""
        begins = tuple(self.ids)
        if begins and not any(str(record.get(name)).startswith(begins) for name in IDS[kind]):
            return False
        chosen = ((name, getattr(self, asked)) for asked, name in _FACTS.items())
        return all(record.get(name) in values for name, values in chosen if values)


EVERYTHING = Selection()


def selected(
    file: Path, kind: type[Record], keep: Selection, limit: int
) -> Iterator[tuple[int, Record]]:
    """(line or row from 1, record) of the first ``limit`` records that ``keep`` keeps.

    Raises InputError when the file is unreadable, a record does not fit ``kind``, or ``keep`` asks
    for a field that its records do not have.
    """
    facts = keep.facts(kind)
    if file.suffix != ".parquet" or not keep:
        chosen = (item for item in iterate_input(file, kind) if keep.keeps(kind, item[1]))
        with Place(file) as place:
            for place.line, record in islice(chosen, limit):
                yield place.line, parse_record(kind, record)
        return
    rows = enumerate(iterate_parquet(file, facts))
    numbers = list(islice((number for number, row in rows if keep.keeps(kind, row)), limit))
    for number, row in zip(numbers, parquet_rows(file, numbers), strict=True):
        with Place(file, number + 1):
            yield number + 1, parse_record(kind, row)
