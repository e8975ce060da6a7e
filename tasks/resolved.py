"""The file ``config.yaml`` of a run: its configuration with bases, overrides and defaults resolved."""

from __future__ import annotations

from pathlib import Path

from pipeline.config import Config
from pipeline.config.writing import as_yaml
from pipeline.core.atomic import write_text
from pipeline.core.errors import StoreError
from pipeline.run.failures import explain_os_error

RESOLVED = "config.yaml"
_HEADER = """\
# The configuration of the latest `steep run` of this run: bases and --set are merged, and defaults
# written out. Used with --config in the same directory, it gives the same stages.
"""


def write_resolved(settings: Config) -> Path:
    """Write the configuration to the run's directory unless it is there; returns the file.

    Raises StoreError when it cannot be written.
    """
    path = settings.run_dir / RESOLVED
    text = _HEADER + as_yaml(settings)
    try:
        if not path.is_file() or path.read_bytes() != text.encode():
            write_text(path, text)
    except OSError as error:
        raise StoreError(explain_os_error(error, path)) from None
    return path
