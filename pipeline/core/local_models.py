"""Find a model on this machine, without a network and without loading anything.

Input: a model as a configuration names it: a directory, a hub name (owner/model), or ``package:NAME``.
Output: its directory, or None.
"""

from __future__ import annotations

import importlib.util
import os
from pathlib import Path

from pipeline.core.shipped import find_model

PACKAGE = "package:"


def is_hub_name(name: str) -> bool:
    """Whether a name can only be that of a model on the hub: owner/model."""
    return not Path(name).is_absolute() and not name.startswith(".") and name.count("/") == 1


def is_offline() -> bool:
    """Whether an environment variable forbids downloads from the hub."""
    values = (os.environ.get(name, "") for name in ("HF_HUB_OFFLINE", "TRANSFORMERS_OFFLINE"))
    return any(value.upper() in ("1", "ON", "YES", "TRUE") for value in values)


def local_directory(name: str) -> Path | None:
    """The directory of a model: its own, that in a package, or that in the cache of the hub.

    The files in it may be incomplete.
    """
    if name.startswith(PACKAGE):
        return _in_package(name.removeprefix(PACKAGE))
    path = Path(find_model(name))
    if path.is_dir():
        return path
    return _cached(name) if is_hub_name(name) else None


def _in_package(package: str) -> Path | None:
    """The directory of the first model in an installed package."""
    spec = importlib.util.find_spec(package) if package.isidentifier() else None
    if spec is None or spec.origin is None:
        return None
    root = Path(spec.origin).parent
    files = sorted(root.rglob("modules.json")) or sorted(root.rglob("config.json"))
    return min(files, key=lambda path: len(path.parts)).parent if files else None


def _cached(name: str) -> Path | None:
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import HFValidationError, LocalEntryNotFoundError

    try:
        return Path(snapshot_download(name, local_files_only=True))
    except (LocalEntryNotFoundError, HFValidationError, OSError, ValueError):
        return None
