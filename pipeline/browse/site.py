"""The runs that a browser shows; the first request for a run opens it."""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

from pipeline.browse.filters import TRAJECTORIES
from pipeline.browse.index import open_index
from pipeline.browse.queries import Queries, Row
from pipeline.browse.records import Knowledge, read_row
from pipeline.browse.sources import SHOWN_STAGES, RunSources, Stages, find_sources
from pipeline.browse.texts import open_tokenizer
from pipeline.core.errors import InputError
from pipeline.core.records import Pair, Trajectory
from pipeline.run.store import MANIFEST

if TYPE_CHECKING:
    from tokenizers import Tokenizer

    from pipeline.browse.asking import Policies


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
    current: Callable[[], Stages | None] = lambda: None
    base_model: Path | None = None
    policies: Policies | None = None
    not_asked: str = ""


class OpenRun:
    """A run with its side table, its passages and its tokenizer."""

    def __init__(
        self, entry: RunEntry, sources: RunSources, queries: Queries, outputs: frozenset[Path]
    ) -> None:
        """``outputs`` are the outputs of the run before ``sources`` were looked for."""
        self.name = entry.name
        self.sources, self.queries = sources, queries
        self.knowledge = Knowledge(sources)
        self.policies = entry.policies
        self.not_asked = entry.not_asked or (
            f"run {entry.name} has no config.yaml that names its policies; open it with its "
            "configuration: steep browse --config FILE"
        )
        self._entry = entry
        self._outputs = outputs

    @property
    def report(self) -> Path | None:
        """The page that the run wrote at its end, if it did."""
        return self.written("report.html")

    def written(self, name: str) -> Path | None:
        """A file in the directory of the run, or None."""
        path = self._entry.store.parent / name
        return path if path.is_file() else None

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

    def trajectory(self, group: str, row: int) -> Trajectory | None:
        """A trajectory by its place in its file, or None."""
        of_group = self.sources.group(group)
        if of_group is None or of_group.trajectories is None:
            return None
        return read_row(of_group.trajectories, row, Trajectory)

    def trajectory_by_id(self, group: str, trajectory_id: str) -> tuple[Row, Trajectory] | None:
        """A trajectory of a group with its row of the side table, or None."""
        row = self.queries.by_id(group, trajectory_id)
        record = None if row is None else self.trajectory(group, row["row"])
        return None if row is None or record is None else (row, record)

    def pair(self, group: str, row: int) -> Pair | None:
        """A pair by its place in its file, or None."""
        of_group = self.sources.group(group)
        if of_group is None or of_group.pairs is None:
            return None
        return read_row(of_group.pairs, row, Pair)

    def row(self, group: str, row: int) -> Row | None:
        """The side table's row of a trajectory, or None."""
        return self.queries.one(TRAJECTORIES, group, row)


def _outputs(store: Path) -> frozenset[Path]:
    """The complete outputs of the stages that pages are made from."""
    return frozenset(
        path for stage in SHOWN_STAGES for path in (store / stage).glob(f"*/{MANIFEST}")
    )


class Site:
    """All runs of a browser, by name; the requested run is the first.

    Runs that appear while the browser runs are found at the next request.
    """

    def __init__(
        self,
        entries: Mapping[str, RunEntry],
        cache: Path,
        say: Callable[[str], None] = lambda line: None,
        others: Callable[[Collection[str]], Mapping[str, RunEntry]] = lambda known: {},
    ) -> None:
        """``others`` gives the runs that exist now besides the runs with the given names."""
        self._known, self._cache, self._say, self._others = dict(entries), cache, say, others
        self._open: dict[str, OpenRun] = {}
        self._lock = threading.Lock()

    @property
    def _entries(self) -> Mapping[str, RunEntry]:
        self._known |= self._others(self._known.keys())
        return self._known

    @property
    def names(self) -> list[str]:
        """The names of all runs."""
        return list(self._entries)

    @property
    def first(self) -> OpenRun:
        """The requested run, opened. Raises the errors of `run`."""
        return self._opened(next(iter(self._known)))

    def run(self, name: str) -> OpenRun | None:
        """The run with this name, opened, or None.

        Raises StoreError when it has no outputs, DependencyError without duckdb.
        """
        return self._opened(name) if name in self._entries else None

    def reopen(self, name: str) -> OpenRun | None:
        """Open a run again, with its present outputs. Returns and raises as `run` does."""
        return self._opened(name, again=True) if name in self._entries else None

    def _opened(self, name: str, *, again: bool = False) -> OpenRun:
        with self._lock:
            if again or name not in self._open:
                entry = self._known[name]
                outputs = _outputs(entry.store)
                sources = find_sources(name, entry.store, entry.current())
                queries = Queries(open_index(sources, self._cache, self._say))
                self._open[name] = OpenRun(entry, sources, queries, outputs)
            return self._open[name]
