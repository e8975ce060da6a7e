"""Folders and disk: whether the run may write, and whether there is room for its plan."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from pathlib import Path

from pipeline.config import Config
from pipeline.engine.plan.memory import gib
from pipeline.engine.plan.plan import Plan


def folder_faults(settings: Config) -> Iterator[str]:
    """A sentence for each directory of the run that cannot be made or written; nothing is made."""
    for path in (settings.run_dir / "store", settings.run_dir / "logs"):
        if os.path.lexists(path) and not path.is_dir():  # also a link to nothing
            yield f"{path} is not a directory; remove it, or set runs_dir or name"
    for key, path in (("runs_dir", settings.run_dir), ("cache_dir", Path(settings.cache_dir))):
        place = existing(path)
        if place.is_dir() and not os.access(place, os.W_OK | os.X_OK):
            yield f"{key}: {place} cannot be written; change its permissions, or set {key}"


def existing(path: Path) -> Path:
    """The path, or the nearest directory above it that exists."""
    for place in (path, *path.parents):
        if place.exists():
            return place
    return Path()


def space_faults(settings: Config, plan: Plan, fetched: float, held: float = 0.0) -> Iterator[str]:
    """A sentence when the disk of the run has too little room.

    ``fetched`` are the bytes of models that are fetched from the hub, ``held`` the bytes of the
    plan that are on the disk already.
    """
    free = shutil.disk_usage(existing(settings.run_dir)).free
    needed = max(plan.disk - held, 0.0) + fetched
    if needed > free:
        largest = max(plan.stages, key=lambda stage: stage.work.disk)
        yield (
            f"runs_dir: the run needs {gib(needed)} GiB of disk ({largest.stage} "
            f"{gib(largest.work.disk)}, models {gib(fetched)}), and {existing(settings.run_dir)} "
            f"has {gib(free)} free; make room, or set runs_dir"
        )
