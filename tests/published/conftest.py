"""The runs of one method, which share their data files, models and caches."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.published.runs import StandInRun, write_stand_ins


@pytest.fixture(scope="module")
def new_run(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Callable[[str], StandInRun]:
    """Gives the run of a configuration of the module's ``METHOD`` by its name."""
    pytest.importorskip("vllm", reason="vLLM is not installed")
    method = request.module.METHOD
    work = tmp_path_factory.mktemp(method)
    stand_ins = write_stand_ins(work, method)
    return lambda name: StandInRun(name, stand_ins, work)
