"""The stage ``sample`` with a retrieval service over HTTP: outages and the check of the index.

The policy is a random model; ``retrieval.rounds: single`` retrieves once per trajectory.
"""

from pathlib import Path

import pytest

from pipeline.core.errors import RetrievalUnavailable
from pipeline.core.record_io import read_records
from pipeline.core.records import Question, Trajectory
from pipeline.engine.context import StageContext
from pipeline.engine.store import StageKey
from pipeline.knowledge.retrieval.fingerprint import RetrievalIdentity
from tasks.sample import run
from tests.retrieval.served import FakeRetriever, served
from tests.smallest import small_config
from tests.stages.question_stages import sampling_inputs, stage_context

QUESTIONS = [Question(f"q{n}", "toy", f"Q{n}?", ["Rome"], "single") for n in range(5)]
STAGES = {"corpus": "corpus-1", "graph": "graph-1", "index": "index-1"}


class FailingRetriever(FakeRetriever):
    """Stops its service while the second batch is being answered."""

    running = None

    def retrieve(self, queries):
        if len(self.batches) == 1:
            self.running.end()
            self.running.wait_until_refusing()
        return super().retrieve(queries)


@pytest.fixture(scope="module")
def inputs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    return sampling_inputs(tmp_path_factory.mktemp("inputs"), QUESTIONS)


def context(inputs: dict[str, Path], folder: Path, url: str) -> StageContext:
    settings = small_config(
        retrieval={"rounds": "single", "service": url, "service_patience": 0.3},
        model={"base": str(inputs["model"])},
        engine={"kind": "transformers", "dtype": "float32", "max_model_len": 512},
        sampling={"samples": 2, "max_segment_tokens": 4, "batch": 1, "in_flight": 2},
    )
    key = StageKey("sample", 1, {}, inputs=STAGES)
    return stage_context(folder, "sample", settings, inputs, round=1, key=key)


def trajectories(context: StageContext) -> list[Trajectory]:
    return read_records(context.output / "trajectories.parquet", Trajectory)


def test_a_service_outage_stops_the_stage_and_a_rerun_continues(inputs, tmp_path):
    identity = RetrievalIdentity.from_settings(
        context(inputs, tmp_path, "http://x").config.retrieval, STAGES, None
    )
    with served(FakeRetriever(), identity) as running:
        uninterrupted = context(inputs, tmp_path / "uninterrupted", running.url)
        run(uninterrupted)

    failing = FailingRetriever()
    with served(failing, identity) as running:
        failing.running = running
        interrupted = context(inputs, tmp_path / "interrupted", running.url)
        with pytest.raises(RetrievalUnavailable, match=r"no answer for 0\.3 s"):
            run(interrupted)
    files = sorted((interrupted.checkpoint_dir / "paths").rglob("*.parquet"))
    finished = [trajectory for file in files for trajectory in read_records(file, Trajectory)]
    assert 0 < len(finished) < len(QUESTIONS) * 2
    assert all(trajectory.stop != "retrieval_error" for trajectory in finished)
    assert all(f"on {trajectory.question}" in trajectory.output for trajectory in finished)
    assert not (interrupted.output / "trajectories.parquet").exists()

    restarted = FakeRetriever()
    with served(restarted, identity, port=running.port):
        run(interrupted)
    assert trajectories(interrupted) == trajectories(uninterrupted)
    queries = {query.subquery for batch in restarted.batches for query in batch}
    assert queries == {f"Q{n}?" for n in range(5)} - {t.question for t in finished}


def test_a_service_with_another_index_is_refused_before_the_engine_starts(inputs, tmp_path):
    with served(FakeRetriever()) as running:
        stage = context(inputs, tmp_path, running.url)
        with pytest.raises(RetrievalUnavailable, match="its retrieval differs"):
            run(stage)
    assert not list(stage.checkpoint_dir.rglob("*.parquet"))
