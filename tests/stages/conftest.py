"""A small embedder, written once for all stages."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.retrieval.small_encoders import write_bi_encoder


@pytest.fixture(scope="session")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_bi_encoder(tmp_path_factory.mktemp("models") / "bi")
