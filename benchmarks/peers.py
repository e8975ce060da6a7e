"""The peer libraries of the benchmarks, which steep does not require.

A row is left out if its library, or the run that it reads, is missing (`Missing`). The others are
measured.
"""

from __future__ import annotations

import importlib
from typing import Any

from pipeline.core.errors import DependencyError

INSTALL = "pip install --no-deps igraph texttable scikit-network"


class Missing:
    """Collects why rows are left out, each reason once."""

    def __init__(self) -> None:
        self.reasons: list[str] = []

    def has(self, module: str) -> bool:
        """Whether a peer library is installed; a missing one is a reason."""
        try:
            peer(module)
        except DependencyError as error:
            self.add(str(error))
            return False
        return True

    def add(self, reason: str) -> None:
        """Note a reason."""
        if reason not in self.reasons:
            self.reasons.append(reason)


def peer(module: str) -> Any:
    """A peer library by its module name. Raises DependencyError when it is not installed."""
    try:
        return importlib.import_module(module)
    except ImportError as error:
        raise DependencyError(
            f"{module.split('.')[0]} is not compared, because it is not installed ({error}); "
            f"{INSTALL}"
        ) from None


def version(module: str) -> str:
    """The version of a peer library, for the table."""
    return str(getattr(peer(module), "__version__", "unknown"))
