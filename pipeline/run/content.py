"""Early cut-off: outputs are found by the content of their inputs, whatever made these inputs.

A fingerprint (`pipeline.run.store.StageKey`) covers the fingerprints of a stage's inputs, so it is known
before anything runs. A content key covers the hashes of the input files instead, so it is known once
the inputs are complete. Two outputs with one content key are the same output: a stage whose
inputs were made again with the same bytes need not run. This is a constructive trace in the sense of
"Build Systems à la Carte" (Mokhov, Mitchell and Peyton Jones, 2018).
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping
from dataclasses import asdict
from fnmatch import fnmatchcase
from pathlib import Path, PurePosixPath
from typing import Any

from pipeline.core.errors import StoreError
from pipeline.run.store import MANIFEST, StageKey, Store, read_manifest

# What a stage writes about its work: no other stage's result depends on it.
ASIDES = frozenset({"README.md", "timing.json"})
MADE_FROM = ".content-key"  # beside checkpoints: the content key of the stage that wrote them


def content_of(manifest: Mapping[str, Any], patterns: Iterable[str] = ("*",)) -> str | None:
    """A hash of the names and contents of an output's files that match ``patterns``.

    Files in `ASIDES` never count. A ``*`` in a pattern also matches slashes. None when a
    pattern matches no file.
    """
    files = manifest["files"]
    names = {name for name in files if PurePosixPath(name).name not in ASIDES}
    chosen: set[str] = set()
    for pattern in patterns:
        found = {name for name in names if fnmatchcase(name, pattern)}
        if not found:
            return None
        chosen |= found
    return _digest([[name, files[name]["sha256"]] for name in sorted(chosen)])


def content_key(key: StageKey, inputs: Mapping[str, str]) -> str:
    """The content key of a stage, given the content of each of its inputs (`content_of`)."""
    return _digest({**asdict(key), "inputs": dict(inputs)})


def holds_checkpoints(directory: Path) -> bool:
    """Whether a stage's directory of checkpoints holds any."""
    return directory.is_dir() and any(path.name != MADE_FROM for path in directory.iterdir())


def _digest(value: Any) -> str:
    text = json.dumps(value, sort_keys=True, ensure_ascii=False, allow_nan=False)
    return hashlib.sha256(text.encode()).hexdigest()[:32]


class Manifests:
    """The manifests of a process's stores; each is read again only when its file has changed."""

    def __init__(self) -> None:
        self._read: dict[Path, tuple[tuple[int, int], dict[str, Any]]] = {}

    def of(self, directory: Path) -> dict[str, Any] | None:
        """The manifest of an output; None when there is none, or it is damaged."""
        path = directory / MANIFEST
        try:
            facts = path.stat()
            state = facts.st_mtime_ns, facts.st_ino
            known = self._read.get(path)
            if known is None or known[0] != state:
                known = self._read[path] = state, read_manifest(directory)
        except (OSError, StoreError):
            return None
        return known[1]

    def with_content(self, store: Store, stage: str, wanted: str) -> Path | None:
        """The newest output of a stage with a content key."""
        found = [
            directory
            for directory in store.completed(stage)
            if (manifest := self.of(directory)) is not None
            and manifest.get("content_key") == wanted
        ]
        return max(found, key=lambda directory: self._read[directory / MANIFEST][0], default=None)
