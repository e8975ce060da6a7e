"""The corpus stage cuts documents into chunks and reads no question."""

from dataclasses import replace
from pathlib import Path

import pytest

from pipeline import config
from pipeline.core.errors import InputError
from pipeline.core.record_io import read_records
from pipeline.core.records import Chunk
from pipeline.run.context import StageContext
from pipeline.stages.corpus import run
from tests.recorded_progress import RecordedProgress

CONFIGS = Path(__file__).parents[2] / "configs"


def context(tmp_path: Path, document: str) -> StageContext:
    (tmp_path / "corpus.jsonl").write_text(document + "\n")
    settings = config.load(
        CONFIGS / "embedded.yaml",
        (
            "data={}",
            f"data.root={tmp_path}",
            "data.test=[{dataset: nq, path: absent.jsonl}]",
            "corpus.files=[{path: corpus.jsonl}]",
            "corpus.chunk_words=2",
        ),
    )
    output = tmp_path / "out"
    output.mkdir()
    return StageContext(settings, "corpus", output, tmp_path / "checkpoints")


def test_documents_are_cut_into_chunks_without_a_look_at_the_questions(tmp_path: Path) -> None:
    progress = RecordedProgress()
    stage = replace(
        context(tmp_path, '{"id": "d", "title": "T", "text": "one two three"}'), progress=progress
    )
    assert run(stage) == {"documents": 1, "documents_without_text": 0, "chunks": 2}
    assert (progress.starts, progress.done) == ([(None, "chunks", 0)], 2)
    chunks = read_records(stage.output / "chunks.parquet", Chunk)
    assert chunks == [Chunk("d-0", "T", "one two", "d"), Chunk("d-1", "T", "three", "d")]
    assert {path.name for path in stage.output.iterdir()} == {"chunks.parquet", "chunks.arrow"}


def test_a_corpus_without_text_raises_input_error(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="no document has any text"):
        run(context(tmp_path, '{"id": "d", "title": "T", "text": " "}'))
