"""TeaRAG's published configurations on stand-ins, from the raw files to the report."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from pipeline.core.record_io import read_records
from pipeline.core.records import SftExample
from tests.published.lessons import REWRITTEN
from tests.published.runs import StandInRun
from tests.published.whole_runs import check_run, finished, output

pytestmark = pytest.mark.timeout(1800)


@pytest.mark.parametrize(
    "name", ["tearag-qwen2.5-14b", pytest.param("tearag-llama3-8b", marks=pytest.mark.slow)]
)
def test_the_configuration_runs_whole_on_stand_ins(
    name: str, new_run: Callable[[str], StandInRun]
) -> None:
    run = new_run(name)
    check_run(run, finished(run))
    assert run.counts("graph")["triplets"] > 0
    examples = read_records(output(run, "sft-data", "train.parquet"), SftExample)
    # The rewriter knows nearly all of the questions.
    assert sum(REWRITTEN in example.completion for example in examples) > len(examples) / 2
    assert run.counts("train")["pairs"] > 0
