"""The stages corpus, graph, hypergraph and sft-data on malformed native files.

Each run replaces one file of a small valid data set by a case of `tests.corpus.malformed`. The
stages refuse it with one sentence, or their outputs are consistent.
"""

from collections.abc import Iterator
from pathlib import Path

from pipeline import config
from pipeline.core.errors import SteepError
from pipeline.core.record_io import read_records
from pipeline.core.records import Chunk, Hyperedge, Question, SftExample, Triplet
from pipeline.run.context import StageContext
from pipeline.stages import corpus, graph, hypergraph, sft_data
from tasks.questions import SPLITS
from tests.corpus.malformed import FORMATS, Case, cases, render
from tests.stages.question_stages import run_questions

CONFIGS = Path(__file__).parents[2] / "configs"
VALID = {format.name: Case(format, "none", render(format, format.records)) for format in FORMATS}


def settings_for(case: Case, root: Path) -> Iterator[str]:
    """Overrides of a configuration that reads the file of ``case`` and valid files besides."""
    format, file = case.format, case.file_name
    yield "data={}"
    yield f"data.root={root}"
    dataset = f", dataset: {format.dataset}" if format.dataset else ""
    extra = f", {{path: {file}{dataset}}}" if format.kind == "documents" else ""
    contexts = ", {path: musique.jsonl, format: questions, dataset: musique}"
    yield f"corpus.files=[{{path: docs.jsonl}}{contexts}{extra}]"
    yield "sft_data.sizes={1: 5, 2: 5}"
    yield "sft_data.test_sizes={}"
    yield "sft_data.min_share=0"
    yield "data.sft=[{dataset: musique, path: musique.jsonl}]"
    if format.kind == "questions" and format.name != "musique":
        yield f"data.sampling=[{{dataset: {format.dataset}, path: {file}}}]"
    source = "openie" if format.kind == "openie" else "annotated"
    triplets = file if format.kind in ("annotated", "openie") else "triplets.jsonl"
    yield f"graph={{source: {source}, path: {triplets}}}"
    yield "hypergraph={source: annotated, path: hyperedges.jsonl}"


def run_stages(case: Case, folder: Path) -> None:
    """Run the stages and check that their tables agree."""
    root = folder / "data"
    root.mkdir()
    for valid in VALID.values():
        assert valid.content is not None
        (root / valid.file_name).write_bytes(valid.content)
    if case.content is None:
        (root / case.file_name).unlink()
        (root / case.file_name).mkdir()
    else:
        (root / case.file_name).write_bytes(case.content)
    settings = config.load(CONFIGS / "embedded.yaml", tuple(settings_for(case, root)))
    questions = {split: run_questions(settings, folder, split)[0].output for split in SPLITS}
    inputs = {"questions": questions["sft"]}
    stages = (("corpus", corpus), ("hypergraph", hypergraph), ("graph", graph), ("sft", sft_data))
    for name, stage in stages:
        inputs[name] = folder / name
        inputs[name].mkdir()
        stage.run(StageContext(settings, name, inputs[name], folder / "checkpoints", inputs))
    chunks = {chunk.id for chunk in read_records(folder / "corpus/chunks.parquet", Chunk)}
    triplets = read_records(folder / "graph/triplets.parquet", Triplet)
    facts = read_records(folder / "hypergraph/hyperedges.parquet", Hyperedge)
    assert {item.chunk_id for item in (*triplets, *facts)} <= chunks
    assert len({item.id for item in (*triplets, *facts)}) == len(triplets) + len(facts)
    assert read_records(folder / "sft/train.parquet", SftExample)
    for output in questions.values():
        read_records(output / "questions.parquet", Question)


def test_valid_files_pass_all_stages(tmp_path: Path) -> None:
    run_stages(VALID["hotpotqa"], tmp_path)


def test_malformed_files_are_refused_by_the_stages_in_one_sentence(tmp_path: Path) -> None:
    messages = {}
    for number, case in enumerate(cases(seed=1, count=15)):
        folder = tmp_path / str(number)
        folder.mkdir()
        try:
            run_stages(case, folder)
        except SteepError as error:
            messages[case.file_name] = str(error)
    assert len(messages) > 5
    for file, message in messages.items():
        assert message.isprintable()
        assert file in message or message.startswith(("sft-data: ", "data."))
