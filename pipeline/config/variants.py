"""Variants of configurations: ablations, baselines and other rows of the papers' tables.

Input: ``configs/variants.yaml``, where a variant names its base (a configuration or another
variant) and the settings that differ. `pipeline.config.load` accepts the name of a variant instead
of a configuration's.
"""

from __future__ import annotations

import difflib
import functools
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from pipeline.config.yaml_files import read_yaml
from pipeline.core.errors import ConfigError
from pipeline.core.shipped import VARIANTS


@dataclass(frozen=True)
class Variant:
    """A variant: ``settings`` replace settings of ``base``, nested as in a configuration."""

    about: str
    base: str
    settings: Mapping[str, Any]


@functools.cache
def variants() -> dict[str, Variant]:
    """All variants by name, in the order of the file."""
    return {
        name: Variant(row["about"], row["base"], row.get("settings", {}))
        for name, row in read_yaml(VARIANTS)["variants"].items()
    }


def check_variant(name: str) -> str:
    """The variant ``name``. Raises ConfigError, with similar names, for an unknown name."""
    if name not in variants():
        close = difflib.get_close_matches(name, variants(), n=5, cutoff=0.4)
        those = f"did you mean {', '.join(close)}? " if close else ""
        raise ConfigError(f"no variant {name[:80]!r}; {those}steep init --list shows all")
    return name
