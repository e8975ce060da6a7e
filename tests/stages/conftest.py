"""The embedder of all stages."""

from __future__ import annotations

from pathlib import Path

import pytest


@pytest.fixture(scope="session")
def model(encoder: Path) -> Path:
    return encoder
