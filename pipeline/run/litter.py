"""Removal of what killed stages and failed stages leave in a store.

Input: a store, and the names of the stages. Output: what was removed, and what was left with the reason.
Only names that the store itself gives are removed, below the folders of known stages, and only under
the stage's lock. Lock files stay: removing one while another process waits for it would let two
processes hold it.
"""

from __future__ import annotations

import re
import shutil
from collections.abc import Collection, Iterator
from dataclasses import dataclass, field
from pathlib import Path

from pipeline.core.errors import StoreError
from pipeline.run.failures import explain_os_error
from pipeline.run.store import MANIFEST, Store

_FINGERPRINT = r"([0-9a-f]{16})"
_OUTPUT = re.compile(_FINGERPRINT)
# Checkpoints, output that another replaced, and output of a stage that was running.
_LITTER = re.compile(rf"{_FINGERPRINT}\.partial|{_FINGERPRINT}\.discarded-\d+|\.{_FINGERPRINT}\..+")
# What a stage says about its progress or its failure, and such a file while it is written.
_RECORD = re.compile(
    rf"{_FINGERPRINT}\.(?:progress|failed)\.json|\.{_FINGERPRINT}\.(?:progress|failed)\.json\.\d+\.tmp"
)
_LOCK = re.compile(rf"{_FINGERPRINT}(?:-forced)?\.lock")
_OF_STORE = re.compile(r"\.hashes\.json|\.\.hashes\.json\..+\.tmp")


@dataclass
class Cleaning:
    """The directories and files that were removed, and one line for each entry that was left."""

    removed: list[Path] = field(default_factory=list)
    left: list[str] = field(default_factory=list)


def clean(store: Store, stages: Collection[str]) -> Cleaning:
    """Remove incomplete outputs and checkpoints that no running process uses."""
    cleaning = Cleaning()
    for folder in _entries(store.root):
        if folder.name in stages and folder.is_dir() and not folder.is_symlink():
            for path in _entries(folder):
                _clean(store, folder.name, path, cleaning)
        elif not _OF_STORE.fullmatch(folder.name):
            cleaning.left.append(f"{folder} is not the folder of a stage")
    return cleaning


def _entries(folder: Path) -> Iterator[Path]:
    try:
        yield from sorted(folder.iterdir())
    except FileNotFoundError:
        return
    except OSError as error:
        raise StoreError(explain_os_error(error, folder)) from None


def _clean(store: Store, stage: str, path: Path, cleaning: Cleaning) -> None:
    fingerprint = _litter_of(path)
    if fingerprint is None:
        if not _LOCK.fullmatch(path.name) and not _complete(path):
            cleaning.left.append(f"{path} was not made by steep")
        return
    try:
        with store.locked(stage, fingerprint, timeout=0):
            if _litter_of(path) is None or not path.exists():  # completed in the meantime
                return
            path.unlink() if path.is_file() else shutil.rmtree(path)
            cleaning.removed.append(path)
    except StoreError:
        cleaning.left.append(f"{path} is in use")
    except OSError as error:
        cleaning.left.append(f"{path} cannot be removed: {explain_os_error(error, path)}")


def _litter_of(path: Path) -> str | None:
    """The fingerprint of a directory or a file that may be removed."""
    if path.is_symlink():
        return None
    if path.is_file():
        match = _RECORD.fullmatch(path.name)
        return next(group for group in match.groups() if group) if match else None
    if not path.is_dir():
        return None
    if match := _LITTER.fullmatch(path.name):
        return next(group for group in match.groups() if group)
    return path.name if _OUTPUT.fullmatch(path.name) and not _complete(path) else None


def _complete(path: Path) -> bool:
    return bool(_OUTPUT.fullmatch(path.name)) and (path / MANIFEST).exists()
