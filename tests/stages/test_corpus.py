"""The corpus stage cuts documents into chunks and reads no question."""

import json
from dataclasses import replace
from pathlib import Path

import pytest

from pipeline import config
from pipeline.core.errors import InputError
from pipeline.core.record_io import read_records
from pipeline.core.records import Chunk
from pipeline.engine.context import StageContext
from tasks.corpus import run
from tests.recorded_progress import RecordedProgress
from tests.stages.question_stages import stage_context

CONFIGS = Path(__file__).parents[2] / "configs"


def context(tmp_path: Path, document: str, *overrides: str) -> StageContext:
    (tmp_path / "corpus.jsonl").write_text(document + "\n")
    settings = config.load(
        CONFIGS / "embedded.yaml",
        (
            "data={}",
            f"data.root={tmp_path}",
            "data.test=[{dataset: nq, path: absent.jsonl}]",
            "corpus.files=[{path: corpus.jsonl}]",
            "corpus.chunk_words=2",
            *overrides,
        ),
    )
    return stage_context(tmp_path, "corpus", settings)


def test_documents_are_cut_into_chunks_without_a_look_at_the_questions(tmp_path: Path) -> None:
    progress = RecordedProgress()
    stage = replace(
        context(tmp_path, '{"id": "d", "title": "T", "text": "one two three"}'), progress=progress
    )
    assert run(stage) == {
        "files": 1, "documents": 1, "documents_without_text": 0, "duplicate_passages": 0,
        "chunks": 2, "skipped_files": 0,
    }  # fmt: skip
    assert (progress.starts, progress.done) == ([(None, "chunks", 0)], 2)
    chunks = read_records(stage.output / "chunks.parquet", Chunk)
    source = "corpus.jsonl"
    assert chunks == [
        Chunk("d-0", "T", "one two", "d", source), Chunk("d-1", "T", "three", "d", source)
    ]  # fmt: skip
    files = {"chunks.parquet", "chunks.arrow", "skipped.json"}
    assert {path.name for path in stage.output.iterdir()} == files


def test_unusable_files_of_a_folder_are_skipped_and_listed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    stage = in_folder(tmp_path)
    counts = run(stage)
    skipped = json.loads((stage.output / "skipped.json").read_text())
    assert (counts["files"], counts["skipped_files"], counts["skipped_rows"]) == (3, 4, 1)
    assert [one["rows"] for one in skipped if "rows" in one] == [1]
    assert {one["file"]: one["reason"] for one in skipped} == {
        "docs/bad.txt": "line 2: not UTF-8 text (invalid start byte); save it as UTF-8",
        "docs/empty.md": "no text",
        "docs/link.md": "a symbolic link, which is not followed",
        "docs/cut.json": "line 2: not valid JSON: expected ','",
        "docs/lines.jsonl": "line 2: not valid JSON: Expecting ':' delimiter at column 9",
    }
    assert "corpus.files: 4 files skipped (skipped.json); the first: docs/bad.txt: line 2: not" in (
        capsys.readouterr().out
    )
    chunks = read_records(stage.output / "chunks.parquet", Chunk)
    assert list(dict.fromkeys((chunk.title, chunk.source) for chunk in chunks)) == [
        ("Lina", "docs/a.md"), ("One", "docs/lines.jsonl"), ("Two", "docs/lines.jsonl"),
        ("z", "docs/sub/z.txt"),
    ]  # fmt: skip


def test_a_strict_corpus_stops_at_the_first_unusable_file(tmp_path: Path) -> None:
    stage = in_folder(tmp_path, "corpus.strict=true")
    with pytest.raises(InputError, match=r"bad\.txt:2: not UTF-8 text"):
        run(stage)


def test_a_malformed_row_of_a_named_file_costs_itself_and_a_broken_file_all(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    named = "corpus.files=[{path: docs/lines.jsonl}]"
    assert run(in_folder(tmp_path, named))["documents"] == 2
    assert "1 malformed rows left out (skipped.json); the first: docs/lines.jsonl: line 2" in (
        capsys.readouterr().out
    )
    with pytest.raises(InputError, match=r"lines\.jsonl:2: not valid JSON"):
        run(in_folder(tmp_path / "strict", named, "corpus.strict=true"))
    with pytest.raises(InputError, match=r"cut\.json:2: not valid JSON"):
        run(in_folder(tmp_path / "cut", "corpus.files=[{path: docs/cut.json}]"))


def in_folder(tmp_path: Path, *overrides: str) -> StageContext:
    """A stage over a folder with two usable files."""
    docs = tmp_path / "docs"
    (docs / "sub").mkdir(parents=True)
    (docs / "a.md").write_text("# Lina\n\nLina is an *artist*.")
    (docs / "sub" / "z.txt").write_text("A port.")
    (docs / "empty.md").touch()
    (docs / "bad.txt").write_bytes(b"one\n\xff\n")
    lines = ['{"title": "One", "text": "1"}', '{"title"}', '{"title": "Two", "text": "2"}']
    (docs / "lines.jsonl").write_text("\n".join(lines))
    (docs / "cut.json").write_text('[{"title": "Cut", "text": "not kept"}\n')
    (docs / ".hidden.md").write_text("hidden")
    (docs / "link.md").symlink_to(docs / "a.md")
    return context(tmp_path, "{}", "corpus.files=[{path: docs}]", *overrides)


def test_a_corpus_without_text_raises_input_error(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="no document has any text"):
        run(context(tmp_path, '{"id": "d", "title": "T", "text": " "}'))
