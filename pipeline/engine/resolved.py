"""Files that a run keeps of its configuration: ``config.yaml`` and ``dtypes.json``.

``config.yaml`` is the configuration with bases, overrides and defaults resolved, and
``dtypes.json`` the number formats that ``dtype: auto`` means.
"""

from __future__ import annotations

from pathlib import Path

from pipeline.config import Config
from pipeline.config.machine_choices import DTYPES, Resolved, read_dtypes
from pipeline.config.writing import as_yaml
from pipeline.core.atomic import write_json, write_text
from pipeline.core.errors import StoreError

RESOLVED = "config.yaml"
PUBLISHED = ("report.html", "metrics.json", "report.json")  # copies of the report stage's files
_HEADER = """\
# The configuration of the latest `steep run` of this run: bases and --set are merged, and defaults
# written out. Used with --config in the same directory, it gives the same stages.
"""


def write_resolved(settings: Config) -> Path:
    """Write the configuration to the run's directory unless it is there; returns the file.

    Raises StoreError when the directory has a file of this or another name that a run writes, and
    is none of a run.
    """
    path = settings.run_dir / RESOLVED
    text = _HEADER + as_yaml(settings)
    there = path.read_bytes() if path.is_file() else b""
    others = () if there or (settings.run_dir / "store").is_dir() else PUBLISHED
    foreign = [settings.run_dir / name for name in others if (settings.run_dir / name).exists()]
    if foreign or not there.startswith(_HEADER[:40].encode() if there else b""):
        raise StoreError(
            f"{(foreign or [path])[0]} is no file of a run, and steep run would replace it; move "
            "it, or set name or runs_dir to another"
        )
    if there != text.encode():
        write_text(path, text)
    return path


def keep_dtypes(resolved: Resolved) -> str | None:
    """Keep the choice of ``dtype: auto`` for the rest of the run; returns a line if it is new.

    Raises StoreError when another process has decided otherwise meanwhile.
    """
    path = resolved.settings.run_dir / DTYPES
    kept = read_dtypes(path)
    if any(kept.get(name, dtype) != dtype for name, dtype in resolved.dtypes.items()):
        raise StoreError(
            f"{path}: another process has just started this run; run the command again"
        )
    if resolved.dtypes.keys() <= kept.keys():
        return None
    write_json(path, {**kept, **resolved.dtypes})
    chosen = ", ".join(f"{name} {dtype}" for name, dtype in resolved.dtypes.items())
    return f"auto is {chosen} (kept in {path})"
