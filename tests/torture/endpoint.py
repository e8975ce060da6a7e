"""Every mode in which a chat endpoint can misbehave."""

from __future__ import annotations

import tempfile
from pathlib import Path

from tests.llm.endpoint_modes import MODES, check
from tests.torture.figures import Figures


def run() -> Figures:
    """Run the client against each mode."""
    figures = Figures("endpoint")
    for mode in MODES:
        with tempfile.TemporaryDirectory() as folder:
            try:
                check(mode, Path(folder))
            except AssertionError as error:
                figures.problems.append(f"{mode.name}: {error}")
        figures.cases += 1
    return figures
