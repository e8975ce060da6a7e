"""Shared by all tests: no network, no deadlines, and where the real data is."""

import gc
import os
import sys
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

import tasks as tasks  # declares the stages
from tests.forked_stages import forked_stages as forked_stages
from tests.forked_stages import new_processes as new_processes

os.environ.setdefault("HF_HUB_OFFLINE", "1")
settings.register_profile(
    "whole",
    deadline=None,
    derandomize=bool(os.environ.get("CI")),
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture],
)
settings.register_profile("quick", settings.get_profile("whole"), max_examples=40)


def pytest_configure(config: pytest.Config) -> None:
    """Generated examples: 40 for a test in the quick suite, 100 in `make check-all`."""
    settings.load_profile("quick" if config.option.markexpr == "not slow" else "whole")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Run the longest files first, so that no worker waits for them at the end."""
    items.sort(key=lambda item: not {"torture", "published"} & {*item.path.parts})


_frozen = 0


def pytest_runtest_setup() -> None:
    """Freeze what tests have imported: every training looks for garbage in all of it, half a second.

    Python's own search for it, after 700 new objects, takes 2 % of the suite.
    """
    global _frozen
    if len(sys.modules) > _frozen + 500:
        _frozen = len(sys.modules)
        gc.freeze()
        gc.set_threshold(50_000)


def pytest_sessionfinish() -> None:
    gc.unfreeze()  # nanobind says at the end what is still alive


@pytest.fixture(scope="session")
def real_data() -> Path:
    """The directory of real questions and corpora; tests that need it skip without it."""
    directory = os.environ.get("STEEP_DATA")
    if not directory:
        pytest.skip("STEEP_DATA is not set")
    return Path(directory)
