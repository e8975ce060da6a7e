"""Removal from a store: the leftovers of killed stages, and outputs that nothing names.

Input: a store, and the names of its stages and outputs. Output: the removed entries, and the
entries that stayed, with the reason. Only names that the store itself gives are removed, below the
folders of known stages, and only under the stage's lock; symbolic links stay. Lock files stay:
removing one while another process waits for it would let two processes hold it. An output is
renamed before its files are removed, so that a kill leaves no output that looks complete.
"""

from __future__ import annotations

import os
import re
import shutil
import stat
import time
from collections.abc import Collection, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pipeline.core.atomic import sync
from pipeline.core.errors import StoreError
from pipeline.run.failures import explain_os_error
from pipeline.run.store import MANIFEST, Store, read_manifest

Named = Collection[tuple[str, str]]  # stages with fingerprints
_FINGERPRINT = "[0-9a-f]{16}"
_ENTRY = re.compile(rf"({_FINGERPRINT})(\.partial|\.lock)?")
# Incomplete outputs, checkpoints, replaced outputs, records of progress and failures, and
# unfinished files.
_INCOMPLETE = re.compile(
    rf"({_FINGERPRINT})(?:\.partial|\.discarded-\d+|\.(?:progress|failed)\.json)?"
    rf"|\.({_FINGERPRINT})\..+"
)
_KEPT = re.compile(rf"{_FINGERPRINT}(?:-forced)?\.lock|\.hashes\.json|\.\.hashes\.json\..+\.tmp")


@dataclass
class Cleaning:
    """The directories and files that were removed, and one line for each entry that was left."""

    removed: list[Path] = field(default_factory=list)
    left: list[str] = field(default_factory=list)


def clean(store: Store, stages: Collection[str]) -> Cleaning:
    """Remove incomplete outputs and checkpoints that no running process uses."""
    cleaning = Cleaning()
    for folder in _paths(store.root):
        if folder.name in stages and folder.is_dir() and not folder.is_symlink():
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
    """A completed output, or the checkpoints of an unfinished one (``manifest`` is then None).

    ``written`` is when it was completed or last written, in seconds since the epoch.
    """

    stage: str
    fingerprint: str
    path: Path
    written: float
    manifest: dict[str, Any] | None


def stored(store: Store, stages: Collection[str]) -> Iterator[Stored | str]:
    """Every complete output of the known stages, and checkpoints.

    A directory whose manifest names another output gives a line that reports it. Other incomplete
    files are left out (`clean`).
    """
    for stage, path, kind in _entries(store, stages):
        fingerprint = path.name[:16]
        if kind == ".lock" or path.is_symlink() or not path.is_dir():
            continue
        if kind == ".partial":
            yield Stored(stage, fingerprint, path, _last_write(path), None)
        elif os.path.lexists(path / MANIFEST):
            try:
                manifest = read_manifest(path)
            except StoreError as error:
                yield str(error)
                continue
            if (manifest["key"]["stage"], manifest["fingerprint"]) != (stage, fingerprint):
                yield f"{path} holds the manifest of another output"
                continue
            yield Stored(stage, fingerprint, path, (path / MANIFEST).stat().st_mtime, manifest)


def size_of(path: Path) -> int:
    """Bytes of the files below a directory; symbolic links count as themselves."""
    return sum(facts.st_size for facts in _facts(path) if not stat.S_ISDIR(facts.st_mode))


def in_use(store: Store, stages: Collection[str], named: Named, seconds: float) -> str | None:
    """Why a process that runs other settings may be reading this store; None if there is no sign.

    The inputs of such a process cannot be known. Signs are the lock of an output that ``named``
    lacks, and such an output or its checkpoints written within the last ``seconds``.
    """
    for stage, path, kind in _entries(store, stages):
        fingerprint = path.name[:16]
        if (stage, fingerprint) in named or path.is_symlink():
            continue
        if kind == ".lock":
            try:
                with store.locked(stage, fingerprint, timeout=0):
                    continue
            except (StoreError, OSError):
                return f"a process runs stage {stage} under {fingerprint}"
        written = _written(path, kind)
        if written is not None and (age := time.time() - written) < seconds:
            return f"{path} was written {max(age, 0):.0f} s ago"
    return None


def remove(store: Store, output: Stored) -> str | None:
    """Remove an output or checkpoints; returns why it was left, or None."""
    path = output.path
    try:
        with store.locked(output.stage, output.fingerprint, timeout=0):
            if path.is_symlink() or _written(path, path.suffix) != output.written:
                return f"{path} has changed in the meantime"
            doomed = path.with_name(f"{output.fingerprint}.discarded-{os.getpid()}")
            path.replace(doomed)
            sync(path.parent)
            shutil.rmtree(doomed)
    except StoreError:
        return f"{path} is in use"
    except OSError as error:
        return f"{path} cannot be removed: {explain_os_error(error, path)}"
    return None


def _entries(store: Store, stages: Collection[str]) -> Iterator[tuple[str, Path, str]]:
    """The stage, path and suffix of every entry that the store names after a fingerprint."""
    for stage in sorted(stages):
        folder = store.root / stage
        if folder.is_symlink():
            continue
        for path in _paths(folder):
            if match := _ENTRY.fullmatch(path.name):
                yield stage, path, match[2] or ""


def _written(path: Path, suffix: str) -> float | None:
    """When an output was completed, or when the newest of its checkpoints was written."""
    if suffix == ".partial":
        return _last_write(path)
    try:
        return (path / MANIFEST).stat().st_mtime
    except (FileNotFoundError, NotADirectoryError):
        return None


def _last_write(path: Path) -> float:
    return max((facts.st_mtime for facts in _facts(path)), default=0.0)


def _facts(path: Path) -> Iterator[os.stat_result]:
    """The facts of a directory and of everything below it; vanished entries are left out."""
    paths = [path]
    for folder, folders, files in os.walk(path):
        paths += [Path(folder) / name for name in (*folders, *files)]
    for below in paths:
        try:
            yield below.lstat()
        except FileNotFoundError:
            continue
