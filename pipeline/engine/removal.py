"""Removal from a store: the leftovers of killed stages, and outputs that nothing names.

Input: a store, and the names of its stages. Output: the removed entries, and the entries that
stayed, with the reason. Only names that the store itself gives are removed, below the folders of
known stages, and only under the stage's lock; symbolic links stay. Lock files stay: removing one
while another process waits for it would let two processes hold it. An output is renamed before its
files are removed, so that a kill leaves no output that looks complete.
"""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Collection, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pipeline.core.errors import StoreError
from pipeline.engine.failures import explain_os_error
from pipeline.engine.stage import STAGES, StageTask, walk
from pipeline.engine.store import MANIFEST, Store, read_manifest, set_aside

_FINGERPRINT = "[0-9a-f]{16}"
_OUTPUT = re.compile(rf"({_FINGERPRINT})(\.partial)?")
# Incomplete outputs, checkpoints, replaced outputs, records of progress and failures, and
# unfinished files.
_INCOMPLETE = re.compile(
    rf"({_FINGERPRINT})(?:\.partial|\.discarded-\d+|\.(?:progress|failed)\.json)?"
    rf"|\.({_FINGERPRINT})\..+"
)
_KEPT = re.compile(
    rf"(?:{_FINGERPRINT}(?:-forced)?)?\.lock|\.hashes\.json|\.\.hashes\.json\..+\.tmp"
)


@dataclass
class Cleaning:
    """The directories and files that were removed, and one line for each entry that was left."""

    removed: list[Path] = field(default_factory=list)
    left: list[str] = field(default_factory=list)


def clean(task: StageTask) -> Cleaning:
    """Remove incomplete outputs and checkpoints, except of running processes."""
    cleaning = Cleaning()
    for store in sorted({needed.store for needed in walk(task)}, key=lambda store: store.root):
        for folder in _paths(store.root):
            if folder.name in STAGES and folder.is_dir() and not folder.is_symlink():
                for path in _paths(folder):
                    _clean(store, folder.name, path, cleaning)
            elif not _KEPT.fullmatch(folder.name):
                cleaning.left.append(f"{folder} is not the folder of a stage")
    return cleaning


def _clean(store: Store, stage: str, path: Path, cleaning: Cleaning) -> None:
    match = _INCOMPLETE.fullmatch(path.name)
    if match is None or path.is_symlink():
        if not _KEPT.fullmatch(path.name):
            cleaning.left.append(f"{path} was not made by steep")
        return
    fingerprint, manifest = match[1] or match[2], path / MANIFEST
    if path.name == fingerprint and manifest.exists():
        return
    try:
        with store.locked(stage, fingerprint, timeout=0):
            if path.name == fingerprint and manifest.exists():  # completed in the meantime
                return
            path.unlink() if path.is_file() else shutil.rmtree(path)
            cleaning.removed.append(path)
    except StoreError:
        cleaning.left.append(f"{path} is in use")
    except FileNotFoundError:  # removed in the meantime
        pass
    except OSError as error:
        cleaning.left.append(f"{path} cannot be removed: {explain_os_error(error, path)}")


def _paths(folder: Path) -> list[Path]:
    """The entries of a folder; none when it does not exist."""
    try:
        return sorted(folder.iterdir())
    except (FileNotFoundError, NotADirectoryError):
        return []
    except OSError as error:
        raise StoreError(explain_os_error(error, folder)) from None


@dataclass(frozen=True)
class Stored:
    """A completed output, or the checkpoints of an unfinished one (``manifest`` is then None)."""

    stage: str
    fingerprint: str
    path: Path
    manifest: dict[str, Any] | None


def stored(store: Store, stages: Collection[str]) -> Iterator[Stored | str]:
    """Every complete output of the known stages, and checkpoints.

    A directory whose manifest names another output gives a line that reports it. Other incomplete
    files are left out (`clean`).
    """
    for stage in sorted(stages):
        for path in [] if (store.root / stage).is_symlink() else _paths(store.root / stage):
            match = _OUTPUT.fullmatch(path.name)
            if match is None or path.is_symlink() or not path.is_dir():
                continue
            if match[2]:
                yield Stored(stage, match[1], path, None)
            elif os.path.lexists(path / MANIFEST):
                yield _output(stage, path)


def _output(stage: str, path: Path) -> Stored | str:
    try:
        manifest = read_manifest(path)
    except StoreError as error:
        return str(error)
    if (manifest["key"]["stage"], manifest["fingerprint"]) != (stage, path.name):
        return f"{path} holds the manifest of another output"
    return Stored(stage, path.name, path, manifest)


def size_and_time(path: Path) -> tuple[int, float]:
    """Bytes of the files below a directory, and when the newest was written.

    Symbolic links count as themselves, and entries that vanish are left out.
    """
    size, newest = 0, 0.0
    for folder, _, files in os.walk(path):
        for name in files:
            try:
                facts = (Path(folder) / name).lstat()
            except FileNotFoundError:
                continue
            size, newest = size + facts.st_size, max(newest, facts.st_mtime)
    return size, newest


def remove(store: Store, output: Stored) -> str | None:
    """Remove an output or checkpoints; returns why it was left, or None."""
    path = output.path
    try:
        with store.locked(output.stage, output.fingerprint, timeout=0):
            shutil.rmtree(set_aside(path))
    except StoreError:
        return f"{path} is in use"
    except OSError as error:
        return f"{path} cannot be removed: {explain_os_error(error, path)}"
    return None
