"""Where the files of a configuration's ``data``, ``corpus`` and ``graph`` blocks come from.

With a closed world, relative paths name files that the stage ``world`` writes; all other paths name
raw files, whose content enters fingerprints.
"""

from __future__ import annotations

import glob
from collections.abc import Iterable
from pathlib import Path

from tasks.base import StageTask
from tasks.world import World


def raw_files(task: StageTask, paths: Iterable[str]) -> dict[str, Path | str]:
    """The raw files among ``paths`` by name, as `StageTask.files` returns them."""
    root = Path(task.settings.data.root or ".")
    return {path: root / path for path in paths if not _in_world(task, path)}


def world_input(task: StageTask, paths: Iterable[str]) -> dict[str, StageTask]:
    """The upstream task ``world`` if it writes any of ``paths``."""
    return {"world": task.clone(World)} if any(_in_world(task, path) for path in paths) else {}


def world_patterns(task: StageTask, paths: Iterable[str]) -> dict[str, tuple[str, ...]]:
    """Those of ``paths`` that the stage ``world`` writes, as `StageTask.input_files` returns them."""
    inside = tuple(glob.escape(str(Path(path))) for path in paths if _in_world(task, path))
    return {"world": inside} if inside else {}


def _in_world(task: StageTask, path: str) -> bool:
    return task.settings.data.closed_world is not None and not Path(path).is_absolute()
