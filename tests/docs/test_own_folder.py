"""A folder of documents in five formats and plain question lines become pairs, as the how-to says."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from pipeline.core.record_io import read_records
from pipeline.core.records import Chunk, Pair, Question
from tests.cli.malformed_inputs import steep
from tests.docs.own_folder import write_own_folder
from tests.docs.test_howto_pages import blocks

OPTIONS = ["--config", "own.yaml", "--data", "."]


@pytest.fixture
def own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder, with the configuration of the page for these files."""
    text = blocks("own-data.md", "yaml")[0]
    for old, new in (
        ("{path: documents.jsonl, format: jsonl}", "{path: docs}"),
        ("{dataset: questions, path: cold-start.jsonl}", "{dataset: musique, path: cold-start.jsonl}"),
        ("{dataset: questions, path: questions.jsonl}", "{path: questions.jsonl}"),
        ("{dataset: questions, path: test.jsonl}", "{path: test.csv}"),
        ("sizes: {2: 1, 3: 0, 4: 0}, test_sizes: {3: 0, 4: 0}", "sizes: {1: 200, 2: 160}, test_sizes: {1: 8, 2: 8}"),
    ):  # fmt: skip
        assert old in text
        text = text.replace(old, new)
    write_own_folder(tmp_path)
    (tmp_path / "own.yaml").write_text(text)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_a_folder_and_plain_lines_are_checked_and_read(own: Path) -> None:
    status, printed, complaint = steep(["check", *OPTIONS])
    assert (status, complaint) == (0, "")
    notes = " ".join(printed.split())
    assert "corpus.files: docs: 1 file skipped: .png, which is not read" in notes
    assert (
        "data.sampling: 60 of 60 questions have neither hops nor evidence, so rewards.kind tearag "
        "counts outcome and format alone for them" in notes
    )
    assert steep(["search", "Brasprel", *OPTIONS])[2].endswith("first\n")
    for stage in ("index", "questions-sampling"):
        status, _, complaint = steep(["run", stage, *OPTIONS])
        assert status == 0, complaint
    (corpus,) = own.glob("runs/own/store/corpus/*/manifest.json")
    sources = {chunk.source for chunk in read_records(corpus.parent / "chunks.parquet", Chunk)}
    assert {Path(source).suffix for source in sources} == {".md", ".html", ".txt", ".csv", ".jsonl"}
    skipped = json.loads((corpus.parent / "skipped.json").read_text())
    assert [one["file"] for one in skipped] == ["docs/notes/empty.md", "docs/pages/picture.png"]
    (graph,) = own.glob("runs/own/store/graph/*/manifest.json")
    assert json.loads(graph.read_text())["counts"]["triplets"] > 500
    (questions,) = own.glob("runs/own/store/questions-sampling/*/questions.parquet")
    assert {one.hop for one in read_records(questions, Question)} == {"unknown"}
    for variant in ("ppr", "semantic"):
        command = ["search", "Lake", *OPTIONS, "--variant", variant, "--json"]
        status, printed, complaint = steep(command)
        assert status == 0, complaint
        found = json.loads(printed)
        assert found["variant"] == variant
        assert {one["source"] for one in found["results"]} <= sources
        scores = [one["score"] for one in found["results"]]
        assert len(scores) == 5
        assert scores == sorted(scores, reverse=True)
    status, _, complaint = steep(["search", "Lake", *OPTIONS, "--variant", "best"])
    assert status == 2
    assert "retrieval.variant" in complaint


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_a_folder_and_plain_lines_give_pairs(own: Path) -> None:
    status, _, complaint = steep(["run", *OPTIONS, "--set", "until=pair"])
    assert status == 0, complaint
    (pairs,) = own.glob("runs/own/store/pair/*/pairs.parquet")
    found = read_records(pairs, Pair)
    assert len(found) >= 5
    assert {pair.kind for pair in found} <= {"format", "easy", "hard"}
