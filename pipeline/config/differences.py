"""The settings of a run that differ from the file that it builds on.

Input: the file and overrides of a configuration. Output: a reference and the settings that differ from it.
The reference is what a reader of the file compares with: the file that it names as its ``base``; for a
shipped file without one the file itself, so that overrides remain; for any other file the defaults.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from pipeline.config.annotated import ABSENT, entries
from pipeline.config.lookup import find_field
from pipeline.config.reading import load, load_base
from pipeline.config.run import Config
from pipeline.config.walk import kind_of
from pipeline.core.shipped import CONFIGURATIONS, find_configuration

DEFAULTS = "the defaults"


def differing_settings(
    path: Path | str, overrides: tuple[str, ...] = (), data: str | None = None
) -> dict[str, Any]:
    """``reference``, a file name or `DEFAULTS`, and ``settings``: ``key``, ``value`` and ``before``.

    Left out are the run's name, settings that only say how work is executed, and ``per_round``. A setting
    whose block the reference lacks has no ``before``, and is there if it differs from its default.
    Arguments and errors are those of `load`.
    """
    config = load(path, overrides, data)
    reference, before = _reference(find_configuration(path), data)
    rows = []
    for entry in entries(config, before):
        old = entry.default if before is None else entry.base
        compared = entry.default if old is ABSENT else old
        listed_elsewhere = entry.key in ("name", "per_round")
        if compared == entry.value or listed_elsewhere or not decides(entry.key):
            continue
        row = {"key": entry.key, "value": entry.value}
        rows.append(row if old is ABSENT else {**row, "before": old})
    return {"reference": reference, "settings": rows}


def _reference(path: Path, data: str | None) -> tuple[str, Config | None]:
    if base := load_base(path, data):
        return base[0].name, base[1]
    if path.resolve().is_relative_to(CONFIGURATIONS.resolve()):
        return path.name, load(path, (), data)
    return DEFAULTS, None


def decides(key: str) -> bool:
    """Whether a setting can decide results."""
    return kind_of(find_field(key).info) != "execution"
