"""What earlier outputs took: the manifests of this run's store, and of all other runs below ``runs_dir``."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from pipeline.core.errors import StoreError
from pipeline.run.store import MANIFEST, read_manifest


@dataclass(frozen=True)
class Measured:
    """One completed output.

    Attributes:
        seconds: wall seconds of the stage's function.
        start_seconds: the part of them before the work that grows with its amount, such as the start of
            an engine; 0 where it is not known.
        launch_seconds: seconds before them, in which the stage's process started.
        amounts: rows and work of the stage, by name.
        size: bytes of all files; None for outputs of versions that did not record them.
        resumed: whether ``seconds`` are those of the last of several attempts.
        modified: the time of the manifest, in nanoseconds since 1970.
    """

    directory: Path
    stage: str
    version: int
    round: int | None
    seconds: float
    start_seconds: float
    launch_seconds: float
    amounts: Mapping[str, float]
    size: int | None
    device: str
    settings: Mapping[str, Any]
    files: Mapping[str, str]
    inputs: Mapping[str, str]
    resumed: bool
    started: str
    modified: int

    @property
    def label(self) -> str:
        """The stage and its round, such as ``sample-1``."""
        return self.stage if self.round is None else f"{self.stage}-{self.round}"

    @property
    def store(self) -> Path:
        return self.directory.parents[1]

    @property
    def origin(self) -> str:
        """The run and the stage, for people: ``embedded sample-1``."""
        return f"{self.store.parent.name} {self.label}"


def read_measured(directory: Path) -> Measured | None:
    """What an output took; None when its manifest cannot be read or has no seconds."""
    try:
        manifest = read_manifest(directory)
        modified = (directory / MANIFEST).stat().st_mtime_ns
    except (StoreError, OSError):
        return None
    if "wall_seconds" not in manifest:
        return None
    key, work = manifest["key"], _numbers(manifest.get("work"))
    amounts = {**_numbers(manifest["counts"]), **work}
    start = amounts.pop("start_seconds", 0.0)
    files = manifest.get("files")
    seconds = float(manifest["wall_seconds"])
    return Measured(
        directory=directory,
        stage=key["stage"],
        version=key["version"],
        round=key["round"],
        seconds=seconds,
        start_seconds=min(start, seconds),
        launch_seconds=float(manifest.get("launch_seconds", 0.0)),
        amounts=amounts,
        size=None if files is None else sum(record["size"] for record in files.values()),
        device=str(manifest.get("device", "")),
        settings=key["settings"],
        files=key["files"],
        inputs=key["inputs"],
        resumed=bool(manifest.get("resumed", False)),
        started=str(manifest.get("started", "")),
        modified=modified,
    )


def _numbers(value: Any) -> dict[str, float]:
    if not isinstance(value, Mapping):
        return {}
    return {
        str(name): number
        for name, number in value.items()
        if isinstance(number, int | float) and not isinstance(number, bool)
    }


class Earlier:
    """The completed outputs in some stores; those of the first store are this run's own."""

    def __init__(self, stores: Iterable[Path]) -> None:
        self.stores = tuple(dict.fromkeys(stores))
        self._of_stage: dict[str, list[Measured]] = {}
        self._read_from: dict[Path, Measured | None] = {}

    @classmethod
    def beside(cls, store: Path, runs_dir: Path, others: Iterable[Path] = ()) -> Earlier:
        """The outputs of a store, of further ones, and of all runs below ``runs_dir``."""
        return cls([store, *others, *sorted(runs_dir.glob("*/store"))])

    def of(self, *stages: str) -> list[Measured]:
        """All outputs of some stages."""
        return [found for stage in stages for found in self._read(stage)]

    def find(self, fingerprint: str) -> Measured | None:
        """The output with a fingerprint, in any store."""
        for directory in self._directories.get(fingerprint, ()):
            if found := self._read_once(directory):
                return found
        return None

    def _read_once(self, directory: Path) -> Measured | None:
        if directory not in self._read_from:
            self._read_from[directory] = read_measured(directory)
        return self._read_from[directory]

    @cached_property
    def _directories(self) -> dict[str, list[Path]]:
        found: dict[str, list[Path]] = {}
        for store in self.stores:
            for path in store.glob(f"*/*/{MANIFEST}"):
                found.setdefault(path.parent.name, []).append(path.parent)
        return found

    def _read(self, stage: str) -> list[Measured]:
        if stage not in self._of_stage:
            directories = [
                path
                for paths in self._directories.values()
                for path in paths
                if path.parent.name == stage
            ]
            read = map(self._read_once, directories)
            self._of_stage[stage] = [found for found in read if found is not None]
        return self._of_stage[stage]
