"""Read trajectories from Parquet with some of their columns, a few hundred in memory at a time."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from pipeline.core.input_files import iterate_parquet
from pipeline.core.methods import DEFAULT_METHOD
from pipeline.core.record_io import from_arrow, parse_record
from pipeline.core.records import Trajectory

FILE = "trajectories.parquet"
# Fields without a default, which a selection of columns may lack.
_BLANK: dict[str, Any] = {
    "trajectory_id": "",
    "question_id": "",
    "dataset": "",
    "question": "",
    "hop": "single",
    "answers": [],
    "evidence": [],
    "grammar": DEFAULT_METHOD,
    "output": "",
}


def iterate_trajectories(path: Path, columns: Sequence[str]) -> Iterator[Trajectory]:
    """Trajectories with the named columns only; the other fields are empty.

    Raises InputError when the file is unreadable, lacks a column, or holds another kind of record.
    """
    for number, row in enumerate(iterate_parquet(path, columns), start=1):
        yield parse_record(Trajectory, _BLANK | from_arrow(row, Trajectory), path, number)
