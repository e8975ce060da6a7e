"""Locks on GPUs between the runs of one machine, on files, one for each device.

Input: names of devices. Output: descriptors of their locked files. The kernel releases a lock when its process
ends, so a kill leaves nothing behind. The files are in ``/run/lock``, the machine's directory for locks, which
is always on a local file system and is the same for every user and checkout; ``STEEP_LOCK_DIR`` names another
one, for example where containers share GPUs.
"""

from __future__ import annotations

import fcntl
import os
import tempfile
from collections.abc import Iterable, Mapping
from contextlib import suppress
from pathlib import Path

from pipeline.core.devices import identity, listed

LOCK_DIR = "STEEP_LOCK_DIR"


def lock_dir() -> Path:
    """The directory of the lock files of devices."""
    if named := os.environ.get(LOCK_DIR):
        return Path(named)
    standard = Path("/run/lock")
    return standard if os.access(standard, os.W_OK | os.X_OK) else Path(tempfile.gettempdir())


def lock_files(names: Iterable[str], folder: Path) -> dict[str, Path]:
    """The lock file of each device: an index and the UUID of the same device have the same."""
    uuids = listed()
    return {name: folder / f"steep-gpu-{identity(name, uuids)}.lock" for name in names}


def take(files: Mapping[str, Path], count: int, folder: Path) -> dict[str, int]:
    """Open descriptors of up to ``count`` free devices by name, with a lock on each.

    The lock is shared, because the processes of the stage hold it too (`pipeline.run.process`): a device
    is free when none of them is left. A second lock makes processes take their turn.
    """
    turn = _open(folder / "steep-gpus.lock")
    try:
        fcntl.flock(turn, fcntl.LOCK_EX)
        taken: dict[str, int] = {}
        for name, path in files.items():
            if len(taken) == count:
                break
            descriptor = _open(path)
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                fcntl.flock(descriptor, fcntl.LOCK_SH)
            except BlockingIOError:
                os.close(descriptor)
            else:
                taken[name] = descriptor
        return taken
    finally:
        os.close(turn)


def _open(path: Path) -> int:
    """Open a lock file for reading, which suffices for a lock, so that its owner may be another user."""
    with suppress(FileExistsError):
        os.close(os.open(path, os.O_RDONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o644))
    return os.open(path, os.O_RDONLY | os.O_NOFOLLOW)
