"""A small model and an adapter of it, for the tests that open or merge them."""

from pathlib import Path

import pytest

from tests.llm.small_models import small_adapter, small_model


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return small_model(tmp_path_factory.mktemp("model"))


@pytest.fixture(scope="module")
def adapter(model: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return small_adapter(model, tmp_path_factory.mktemp("adapter"))
