"""Shared by all tests: no network, no deadlines, and where the real data is."""

import os
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

import tasks as tasks  # declares the stages

os.environ.setdefault("HF_HUB_OFFLINE", "1")
settings.register_profile(
    "steep",
    deadline=None,
    derandomize=bool(os.environ.get("CI")),
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture],
)
settings.load_profile("steep")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Run the longest files first, so that no worker waits for them at the end."""
    items.sort(key=lambda item: not {"torture", "published"} & {*item.path.parts})


@pytest.fixture(scope="session")
def real_data() -> Path:
    """The directory of real questions and corpora; tests that need it skip without it."""
    directory = os.environ.get("STEEP_DATA")
    if not directory:
        pytest.skip("STEEP_DATA is not set")
    return Path(directory)
