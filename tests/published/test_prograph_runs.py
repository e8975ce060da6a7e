"""ProGraph-R1's published configurations on stand-ins, from the raw files to the report.

The first one runs on vLLM's multi-process engine, as on GPUs.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.published.replacements import REPLACEMENTS, WITHOUT_VLLM
from tests.published.runs import StandInRun, StandIns, write_stand_ins
from tests.published.whole_runs import check_engines, check_report, sampled

pytestmark = [pytest.mark.timeout(1800), pytest.mark.standins]


@pytest.fixture(scope="module")
def stand_ins(tmp_path_factory: pytest.TempPathFactory) -> StandIns:
    return write_stand_ins(tmp_path_factory.mktemp("stand-ins"), "prograph")


@pytest.mark.parametrize(
    ("name", "engine"), [("prograph-qwen2.5-3b", "vllm"), ("prograph-qwen2.5-7b", "transformers")]
)
def test_the_configuration_runs_whole_on_stand_ins(
    name: str, engine: str, stand_ins: StandIns, tmp_path: Path
) -> None:
    if engine == "vllm":
        pytest.importorskip("vllm", reason="vLLM is not installed")
    rows = REPLACEMENTS if engine == "vllm" else (*REPLACEMENTS, WITHOUT_VLLM)
    run = StandInRun(name, stand_ins, tmp_path, rows)
    # At this level the processes of an engine name themselves in the logs of the stages.
    run.finish(VLLM_ENABLE_V1_MULTIPROCESSING="1", VLLM_LOGGING_LEVEL="INFO")
    check_report(run)
    check_engines(run, engine)
    logs = [path.read_text() for path in run.directory.glob("logs/sample*.log")]
    assert all(("(EngineCore" in log) == (engine == "vllm") for log in logs)
    assert run.counts("hypergraph")["hyperedges"] > 0
    assert sampled(run)["answer"] > 0
    assert run.counts("train")["paths"] > 0
