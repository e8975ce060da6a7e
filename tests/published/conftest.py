"""The runs of one method, which share their data files, models and caches."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.published.runs import StandInRun, write_stand_ins


@pytest.fixture(scope="module")
def new_run(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], StandInRun]:
    """Gives the run of a configuration by its name; a module's runs are of one method."""
    pytest.importorskip("vllm", reason="vLLM is not installed")
    work = tmp_path_factory.mktemp("published")
    return lambda name: StandInRun(name, write_stand_ins(work, name), work)
