"""A closed world, built once."""

from __future__ import annotations

from contextlib import chdir
from pathlib import Path

import pytest

from pipeline.engine.run import run
from tasks import task_for


@pytest.fixture(scope="session")
def with_world(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder in which the embedded run has its world."""
    folder = tmp_path_factory.mktemp("world")
    with chdir(folder):
        run(task_for("world", "embedded"))
    return folder
