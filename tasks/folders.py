"""The check of a run's directories before anything is read or runs, and names of files."""

from __future__ import annotations

import os
import re

from pipeline.config import Config
from pipeline.core.errors import ConfigError, StoreError
from pipeline.run.failures import explain_os_error


def check_folders(settings: Config) -> None:
    """Raise ConfigError when a file or a dangling link is in the place of a directory of the run.

    Loading the configuration has checked ``runs_dir`` and the run's own directory. Raises
    StoreError when the file system fails.
    """
    for path in (settings.run_dir / "store", settings.run_dir / "logs"):
        try:
            if not os.path.lexists(path) or path.is_dir():
                continue
            kind = "a file" if path.exists() else "a link to nothing"
        except OSError as error:
            raise StoreError(explain_os_error(error, path)) from None
        raise ConfigError(
            f"{path} is {kind}, and the run needs a directory there; remove it, or set runs_dir "
            f"(now {settings.runs_dir}) or name (now {settings.name})"
        )


def file_name(name: str) -> str:
    """A name as part of a file's name: "-" replaces all but letters, digits and ``._-``."""
    return re.sub(r"[^\w.-]+", "-", name).strip("-.")[-100:] or "policy"
