"""HiPRAG's published configurations on stand-ins, from the raw files to the report."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.published.runs import StandInRun
from tests.published.whole_runs import check_run, finished

pytestmark = pytest.mark.timeout(1800)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["hiprag-qwen2.5-7b", "hiprag-qwen2.5-3b"])
def test_the_configuration_runs_whole_on_stand_ins(
    name: str, new_run: Callable[[str], StandInRun]
) -> None:
    run = new_run(name)
    rows = check_run(run, finished(run))
    assert any(row["osr"] is not None for row in rows)  # the judges have answered
    assert run.counts("train")["pairs"] > 0
