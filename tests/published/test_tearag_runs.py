"""TeaRAG's published configurations on stand-ins, from the raw files to the report."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.published.replacements import REPLACEMENTS, WITHOUT_VLLM
from tests.published.runs import StandInRun, StandIns, write_stand_ins
from tests.published.whole_runs import check_engines, check_report, sampled

pytestmark = [pytest.mark.timeout(1800), pytest.mark.standins]


@pytest.fixture(scope="module")
def stand_ins(tmp_path_factory: pytest.TempPathFactory) -> StandIns:
    return write_stand_ins(tmp_path_factory.mktemp("stand-ins"), "tearag")


@pytest.mark.parametrize("name", ["tearag-llama3-8b", "tearag-qwen2.5-14b"])
def test_the_configuration_runs_whole_on_stand_ins(
    name: str, stand_ins: StandIns, tmp_path: Path
) -> None:
    run = StandInRun(name, stand_ins, tmp_path, (*REPLACEMENTS, WITHOUT_VLLM))
    run.finish()
    check_report(run)
    check_engines(run, "transformers")
    assert run.counts("graph")["triplets"] > 0
    assert sampled(run)["answer"] > 0
    assert run.counts("train")["pairs"] > 0
