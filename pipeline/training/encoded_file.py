"""Encoded records in a memory-mapped Arrow file.

Input: encoded records, one at a time. Output: a file below the stage's checkpoint directory and a
sequence over it. Only the lengths of the records and the rows of a micro-batch are in a process's
own memory. The pages of the file are shared by all training processes of a machine, and the system
can drop them at any time. A list of the records would take about 36 bytes for each token in each
process.
"""

from __future__ import annotations

import dataclasses
import typing
from array import array
from collections.abc import Iterable, Iterator
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Generic

from pipeline.core.atomic import replacing
from pipeline.training.encode import E, Encoded
from pipeline.training.trl_types import Dataset

if TYPE_CHECKING:
    import pyarrow as pa

_LENGTH, _TOKENS = "length", "tokens"
_ROWS = 256  # rows of a record batch: the writer holds one batch


@dataclasses.dataclass
class EncodedCounts:
    """Numbers of a set of encoded records."""

    records: int = 0
    tokens: int = 0  # tokens of all sequences; a pair counts its prompt twice
    trained_tokens: int = 0  # tokens that the loss reads


def write_encoded(path: Path, kind: type[E], records: Iterable[E]) -> EncodedCounts:
    """Write records of type ``kind`` to ``path``, atomically, and return their counts.

    Only one process may write ``path``. Incomplete files of killed processes are deleted.
    """
    import pyarrow as pa

    for incomplete in path.parent.glob(f".{path.name}.*.tmp"):
        incomplete.unlink()
    schema = _schema(kind)
    counts, waiting = EncodedCounts(), iter(records)
    with replacing(path) as temporary, pa.ipc.new_stream(str(temporary), schema) as writer:
        while batch := list(islice(waiting, _ROWS)):
            counts.records += len(batch)
            counts.tokens += sum(record.tokens for record in batch)
            counts.trained_tokens += sum(record.trained_tokens for record in batch)
            columns = [
                pa.array([getattr(record, field.name) for record in batch], type=field.type)
                for field in schema
            ]
            writer.write_batch(pa.RecordBatch.from_arrays(columns, schema=schema))
    return counts


class EncodedFile(Generic[E]):
    """The records of a file of `write_encoded`, read on demand.

    ``lengths`` are the `Encoded.length` and ``tokens`` the `Encoded.tokens` of every record, [N],
    at 8 bytes each; ``dataset`` has the fields of the records as columns.
    """

    def __init__(self, path: Path, kind: type[E]) -> None:
        import datasets

        self._kind = kind
        stored = datasets.Dataset.from_file(str(path))
        self.lengths: array[int] = array("q", stored.data.column(_LENGTH).to_pylist())
        self.tokens: array[int] = array("q", stored.data.column(_TOKENS).to_pylist())
        self.dataset: Dataset = stored.remove_columns([_LENGTH, _TOKENS])

    def __len__(self) -> int:
        return len(self.dataset)

    def __getitem__(self, index: int) -> E:
        return self._kind(**self.dataset[index])

    def __iter__(self) -> Iterator[E]:
        return (self._kind(**row) for row in self.dataset)


def _schema(kind: type[Encoded]) -> pa.Schema:
    """Ids take 4 bytes, numbers 4 bytes, entries of a mask 1 byte."""
    import pyarrow as pa

    types = {str: pa.string(), list[int]: pa.list_(pa.int32()), list[float]: pa.list_(pa.float32())}
    return pa.schema(
        [
            *(
                (name, pa.list_(pa.int8()) if "mask" in name else types[hint])
                for name, hint in typing.get_type_hints(kind).items()
            ),
            (_LENGTH, pa.int64()),
            (_TOKENS, pa.int64()),
        ]
    )
