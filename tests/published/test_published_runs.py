"""The published configurations on stand-ins with real tokenizers, from the raw files to the report.

The run of ProGraph-R1 with the 3B model has vLLM's multi-process engine, as on GPUs.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from pipeline import config
from pipeline.core.input_files import leaves
from pipeline.core.record_io import read_records
from pipeline.core.records import SftExample
from pipeline.core.shipped import CONFIGURATIONS
from tests.llm.marked_processes import left_after, marked
from tests.published.lessons import REWRITTEN
from tests.published.replacements import MODELS, PUBLISHED
from tests.published.runs import PLACES, StandInRun, StandIns, method_of, write_stand_ins

MARK = "STEEP_TEST_STAND_IN_RUN"
ENGINE = "VLLM::EngineCore"
# Files that are no published setting: the embedded runs, two small ones, and runs of a small GPU.
OTHERS = ("embedded", "musique-sample", "real-passages", "single-gpu", "smollm2", "variants")


@pytest.fixture(scope="module")
def new_run(
    tmp_path_factory: pytest.TempPathFactory, real_data: Path
) -> Callable[[str], StandInRun]:
    """Gives the run of a configuration; the runs of a method share data files, models and caches.

    The tokenizers of the models are in the real data.
    """
    pytest.importorskip("vllm", reason="vLLM is not installed")
    root = tmp_path_factory.mktemp("published")

    def made(name: str) -> StandInRun:
        work = root / method_of(name)
        return StandInRun(name, write_stand_ins(work, name), work)

    return made


@contextmanager
def watched(mark: str) -> Iterator[set[str]]:
    """The names of the processes with ``mark`` in their environment, looked up every two seconds."""
    names: set[str] = set()
    done = threading.Event()

    def watch() -> None:
        while not done.wait(2):
            names.update(marked(mark).values())

    thread = threading.Thread(target=watch, daemon=True)
    thread.start()
    try:
        yield names
    finally:
        done.set()
        thread.join()


def finished(run: StandInRun, **variables: str) -> str:
    """The messages of a run after it has ended.

    The sampled trajectories depend on the processor. Where no question has a right one and a wrong
    one, the run samples again, four times as many.
    """
    try:
        return run.finish(**variables)
    except AssertionError as error:
        if "has no preference pairs" not in str(error):
            raise
    return run.finish("--set", "sampling.samples=24", **variables)


@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("name", PUBLISHED)
def test_the_configuration_runs_whole_on_stand_ins(
    name: str, new_run: Callable[[str], StandInRun]
) -> None:
    run = new_run(name)
    with watched(f"{MARK}={name}") as processes:
        messages = finished(run, **{MARK: name})
    assert "no faults" in messages  # from steep check
    assert "no GPU; disk about" in messages
    assert "<html" in (run.directory / "report.html").read_text(encoding="utf-8")
    rows = json.loads((run.directory / "metrics.json").read_text())
    settings = config.load(name, data="/data")
    files = getattr(settings.data, settings.evaluation.split)
    tested = {one for file in files for one in file.gold or [file.dataset]}
    found = {(row["policy"], row["dataset"]) for row in rows}
    assert {(policy, one) for policy in ("sft", "round-1") for one in tested} <= found
    assert json.loads(run.output("sample", "stops.json").read_text())["answer"] > 0
    kind = method_of(name)
    if kind == "tearag":
        assert run.counts("graph")["triplets"] > 0
        if settings.graph.scope == "candidates":
            counts = run.counts("sample")
            assert 0 <= counts["shown_without_triplets"] < counts["shown_passages"]
        examples = read_records(run.output("sft-data", "train.parquet"), SftExample)
        # The rewriter knows nearly all of the questions.
        texts = [f"{example.completion}{example.messages}" for example in examples]
        assert sum(REWRITTEN in text for text in texts) > len(examples) / 2
    elif kind == "hiprag":
        assert any(row["osr"] is not None for row in rows)  # the judges have answered
    elif kind == "prograph":
        assert run.counts("hypergraph")["hyperedges"] > 0
    if settings.evaluation.final_split:
        last = [row for row in rows if row["split"] == settings.evaluation.final_split]
        assert {row["policy"] for row in last} == {"round-1"}
    assert run.counts("train")["paths" if settings.objective == "grpo" else "pairs"] > 0
    assert any(ENGINE in process for process in processes) == (name == "prograph-qwen2.5-3b")
    assert left_after(f"{MARK}={name}") == {}


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_engine_processes_sample_as_one_process_does(new_run: Callable[[str], StandInRun]) -> None:
    run = new_run("prograph-qwen2.5-3b")
    finished(run)
    sampled = run.output("sample", "trajectories.parquet").read_bytes()
    path = run.write_configuration("http://127.0.0.1:1/v1")
    again = ("run", "sample", "--round", "1", "--force")
    run.steep(*again, path=path, VLLM_ENABLE_V1_MULTIPROCESSING="0")
    assert run.output("sample", "trajectories.parquet").read_bytes() == sampled


def test_every_published_configuration_has_a_stand_in_run() -> None:
    files = {path.stem for path in CONFIGURATIONS.glob("*.yaml")}
    assert {name for name in files if not name.startswith(OTHERS)} == set(PUBLISHED)


@pytest.mark.parametrize("name", PUBLISHED)
def test_no_model_or_address_of_the_published_run_is_left(name: str, tmp_path: Path) -> None:
    run = StandInRun(name, StandIns(Path("/data"), PLACES.models), tmp_path)
    settings = config.load(run.write_configuration(PLACES.endpoint), data="/data")
    values = [str(value) for _, value in leaves(settings.model_dump(mode="json"))]
    assert not MODELS.keys() & set(values)
    assert not [value for value in values if value.startswith("https://")]
