"""The runs that a browser shows, and their single records; the first request for a run opens it.

Of a Parquet file only the requested row is decoded, so that a page over 100,000 trajectories costs
as little as a page over ten.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from pipeline.core.columns import Records
from pipeline.core.errors import InputError, Place, StoreError
from pipeline.core.input_files import read_json
from pipeline.core.record_io import parse_record
from pipeline.core.records import Chunk, Pair, Trajectory, Triplet
from pipeline.core.row_files import parquet_rows
from pipeline.engine.store import MANIFEST
from pipeline.evaluation.terminal import open_tokenizer
from pipeline.look.browse.index import open_index
from pipeline.look.browse.queries import Queries
from pipeline.look.browse.sources import find_sources

if TYPE_CHECKING:
    from tokenizers import Tokenizer

    from pipeline.look.browse.asking import Policies


R = TypeVar("R", Trajectory, Pair)


@dataclass(frozen=True)
class RunEntry:
    """The directory of a run, and the facts of its configuration.

    ``current`` gives the outputs that its configuration names today, or None if they are unknown.
    ``base_model`` is the directory of the tokenizer. ``policies`` can be asked questions. It is
    None for a run without its own configuration; ``not_asked`` gives the reason if the
    configuration belongs to another run.
    """

    name: str
    store: Path
    current: Callable[[], Sequence[Path] | None] = lambda: None
    base_model: Path | None = None
    policies: Policies | None = None
    not_asked: str = ""


class OpenRun:
    """A run with its side table, its passages and its tokenizer."""

    def __init__(self, entry: RunEntry, cache: Path) -> None:
        self.name, self.policies = entry.name, entry.policies
        self.not_asked = entry.not_asked or (
            f"run {entry.name} has no config.yaml that names its policies; open it with its "
            "configuration: steep browse --config FILE"
        )
        self._entry = entry
        self._outputs = _outputs(entry.store)  # before the sources are looked for
        self.sources = find_sources(entry.name, entry.store, entry.current())
        self.queries = Queries(open_index(self.sources, cache))

    @property
    def report(self) -> Path | None:
        """The page that the run wrote at its end, if it did."""
        path = self._entry.store.parent / "report.html"
        return path if path.is_file() else None

    @property
    def figures(self) -> Mapping[str, Any]:
        """The figures of the report that no other file has; empty before it is written."""
        path = self._entry.store.parent / "report.json"
        return read_json(path, dict) if path.is_file() else {}

    @property
    def has_new_outputs(self) -> bool:
        """Whether the run has other outputs now than when it was opened."""
        return _outputs(self._entry.store) != self._outputs

    @cached_property
    def tokenizer(self) -> Tokenizer:
        """The tokenizer of the base model. Raises InputError when it is not known or missing."""
        directory = self._entry.base_model
        if directory is None:
            raise InputError(
                f"run {self.name} has no config.yaml that names its base model, so its tokens "
                "cannot be shown; open it with its configuration: steep browse --config FILE"
            )
        return open_tokenizer(directory)

    def record(self, kind: type[R], group: str, row: int) -> R | None:
        """A trajectory or pair by its row, from 0, in the file of its group, or None.

        Raises StoreError when the file cannot be read or the record does not fit ``kind``.
        """
        of_group = self.sources.group(group)
        if of_group is None:
            return None
        path = of_group.pairs if kind is Pair else of_group.trajectories
        if path is None:
            return None
        try:
            with Place(path, row + 1):
                found = next(parquet_rows(path, [row]), None)
                return None if found is None else parse_record(kind, found)
        except InputError as error:
            raise StoreError(str(error)) from None

    def knowledge(self, table: str, column: str, value: str) -> list[Any]:
        """The ``chunks``, ``triplets`` or ``hyperedges`` of the run that have a value."""
        stage, kind = _KNOWLEDGE[table]
        directory = self.sources.knowledge.get(stage)
        for suffix in (".arrow", ".parquet"):  # memory-mapped, if there is such a file
            if directory is not None and (path := directory / f"{table}{suffix}").is_file():
                return _records(path, kind).where(column, [value])
        return []


@dataclass(frozen=True)
class NaryFact:
    """An n-ary fact without its entities."""

    id: str
    text: str
    chunk_id: str


_KNOWLEDGE = {
    "chunks": ("corpus", Chunk), "triplets": ("graph", Triplet),
    "hyperedges": ("hypergraph", NaryFact),
}  # fmt: skip


def _outputs(store: Path) -> frozenset[Path]:
    """The complete outputs of all stages."""
    return frozenset(store.glob(f"*/*/{MANIFEST}"))


class Site:
    """All runs of a browser, by name; the requested run is the first.

    Runs that appear while the browser runs are found at the next request.
    """

    def __init__(
        self,
        entries: Mapping[str, RunEntry],
        cache: Path,
        others: Callable[[Collection[str]], Mapping[str, RunEntry]] = lambda known: {},
    ) -> None:
        """``others`` gives the runs that exist now besides the runs with the given names."""
        self._known, self._cache, self._others = dict(entries), cache, others
        self._open: dict[str, OpenRun] = {}
        self._lock = threading.Lock()

    @property
    def names(self) -> list[str]:
        """The names of all runs."""
        self._known |= self._others(self._known.keys())
        return list(self._known)

    @property
    def first(self) -> OpenRun:
        """The requested run, opened. Raises the errors of `run`."""
        return self._opened(next(iter(self._known)))

    def run(self, name: str) -> OpenRun | None:
        """The run with this name, opened, or None.

        Raises StoreError when it has no outputs, DependencyError without duckdb.
        """
        return self._opened(name) if name in self.names else None

    def _opened(self, name: str) -> OpenRun:
        with self._lock:
            if name not in self._open:
                self._open[name] = OpenRun(self._known[name], self._cache)
            return self._open[name]


@lru_cache(maxsize=8)
def _records(path: Path, kind: type[Any]) -> Records[Any]:
    return Records(path, kind)
