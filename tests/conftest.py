"""Shared by all tests: no network, no deadlines, and where the real data is."""

import gc
import os
import re
import sys
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, settings

import tasks as tasks  # declares the stages
from tests.forked_stages import forked_stages as forked_stages
from tests.forked_stages import new_processes as new_processes
from tests.llm.small_models import small_model
from tests.retrieval.small_encoders import write_bi_encoder

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


_MODELS = re.compile(
    r"torch\b|transformers|(?i:tokenizer)|tiny_policy|small_(model|adapter|run)|encoder|valid_records"
    r"|[(,\n] *model[,:)]"
)


@cache
def _opens_models(file: Path) -> bool:
    of_its_own = {"torture", "browse", "docs"} & {*file.parts}  # long without models
    return not of_its_own and _MODELS.search(file.read_text(encoding="utf-8")) is not None


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """In the quick suite, one process runs all files that open models or real tokenizers.

    Their packages and vocabularies take 8 CPU s to load, and these files half of the suite.
    """
    from xdist.scheduler import LoadFileScheduling

    class ModelsInOne(LoadFileScheduling):
        def _split_scope(self, nodeid: str) -> str:
            file: str = super()._split_scope(nodeid)
            return "models" if _opens_models(config.rootpath / file) else file

    quick = config.option.markexpr == "not slow" and config.option.dist == "loadfile"
    return ModelsInOne(config, log) if quick else None


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


@pytest.fixture(scope="session")
def encoder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A small random embedder, which no test changes."""
    return write_bi_encoder(tmp_path_factory.mktemp("models") / "bi")


@pytest.fixture(scope="session")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A small random policy model, which no test changes."""
    return small_model(tmp_path_factory.mktemp("model") / "base")
