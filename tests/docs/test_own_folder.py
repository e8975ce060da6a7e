"""A folder of documents in five formats and plain question lines become pairs, by the configuration of ``steep init own``."""

from __future__ import annotations

import csv
import html
import json
from pathlib import Path
from typing import Any

import pytest

from pipeline.closed_world.write import write_closed_world
from pipeline.core.record_io import read_records
from pipeline.core.records import Chunk, Pair, Question
from tests.cli.malformed_inputs import accepted, finished, refused, steep

OPTIONS = ["--config", "folder/own.yaml"]
SIZES = dict.fromkeys(
    ("musique_dev", "musique_test", "hotpotqa_dev", "hotpotqa_test", "wiki2_test", "nq_dev", "nq_test"), 0
) | {"musique_train": 500, "musique_sampling": 20, "hotpotqa_sampling": 20, "nq_sampling": 20}  # fmt: skip


def records(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def write(path: Path, rows: list[dict[str, Any]]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))


def write_own_folder(folder: Path) -> Path:
    """Documents of a closed world in five formats, plain question lines, and a cold start."""
    world, docs = folder / "world", folder / "docs"
    write_closed_world(world, seed=0, documents=400, sizes=SIZES)
    for name in ("notes", "pages", "plain"):
        (docs / name).mkdir(parents=True)
    corpus = records(world / "corpus.jsonl")
    for number, record in enumerate(corpus):
        title, text = record["title"], record["text"]
        if number % 5 == 0:
            (docs / f"notes/{number}.md").write_text(f"# {title}\n\n{text}\n")
        elif number % 5 == 1:
            page = f"<title>{html.escape(title)}</title><p>{html.escape(text)}"
            (docs / f"pages/{number}.html").write_text(page)
        elif number % 5 == 2:
            (docs / f"plain/{number}").mkdir()  # a title may occur twice
            (docs / f"plain/{number}/{title}.txt").write_text(text)
    rest = [{"title": one["title"], "text": one["text"]} for one in corpus]
    write(docs / "tables" / "rest.jsonl", rest[4::5])
    with (docs / "tables" / "rest.csv").open("w", newline="") as stream:
        writer = csv.DictWriter(stream, ["title", "text"])
        writer.writeheader()
        writer.writerows(rest[3::5])
    (docs / "notes" / "empty.md").touch()
    (docs / "pages" / "picture.png").write_bytes(b"\x89PNG")
    asked = records(world / "nq_sampling.jsonl") + records(world / "musique_sampling.jsonl")
    asked += json.loads((world / "hotpotqa_sampling.json").read_text())
    answers = [one["answer"] for one in asked]
    firsts = [answer[0] if isinstance(answer, list) else answer for answer in answers]
    pairs = zip(asked, firsts, strict=True)
    write(folder / "questions.jsonl", [{"question": q["question"], "answer": a} for q, a in pairs])
    (world / "musique_train.jsonl").rename(folder / "cold-start.jsonl")
    return folder


@pytest.fixture
def own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder with the configuration that `steep init own` writes, seen from another folder."""
    folder = write_own_folder(tmp_path / "folder")
    monkeypatch.chdir(folder)
    files = ("questions.jsonl", "cold-start.jsonl")
    named = [word for name in files for word in ("--questions", name)]
    printed = finished("init", "own", "--docs", "docs", *named)
    assert "questions.jsonl: 60, read as questions; 0 have evidence" in printed
    monkeypatch.chdir(tmp_path)
    return folder


def test_a_folder_and_plain_lines_are_checked_and_read(own: Path) -> None:
    notes = " ".join(accepted("check", *OPTIONS).split())
    assert "corpus.files: docs: 1 file skipped: .png, which is not read" in notes
    left = 48  # of 60, without the 12 that are held out
    assert "data.sampling: 12 questions repeat one of data.test; left out" in notes
    assert f"data.sampling: grammar search-r1 fits: 0 of {left} questions have evidence" in notes
    notes = " ".join(finished("check", *OPTIONS, "--set", "grammar=tearag").split())
    assert f"data.sampling: grammar is tearag, and search-r1 fits: 0 of {left}" in notes
    assert (
        f"data.sampling: {left} of {left} questions have neither hops nor evidence, so grammar tearag "
        "counts outcome and format alone for them" in notes
    )
    assert steep(["search", "Brasprel", *OPTIONS])[2].endswith("first\n")
    for stage in ("graph", "questions-sampling"):
        finished("run", stage, *OPTIONS)
    (corpus,) = own.glob("runs/own/store/corpus/*/manifest.json")
    sources = {chunk.source for chunk in read_records(corpus.parent / "chunks.parquet", Chunk)}
    assert {Path(source).suffix for source in sources} == {".md", ".html", ".txt", ".csv", ".jsonl"}
    skipped = json.loads((corpus.parent / "skipped.json").read_text())
    assert [one["file"] for one in skipped] == ["docs/notes/empty.md", "docs/pages/picture.png"]
    (graph,) = own.glob("runs/own/store/graph/*/manifest.json")
    assert json.loads(graph.read_text())["counts"]["triplets"] > 500
    (questions,) = own.glob("runs/own/store/questions-sampling/*/questions.parquet")
    found = read_records(questions, Question)
    assert {one.hop for one in found} == {"unknown"}
    assert 40 <= len(found) <= 48  # 12 are held out, and near repetitions with them


@pytest.mark.slow
def test_the_passages_of_a_folder_are_searched(own: Path) -> None:
    finished("run", "index", *OPTIONS)
    for variant in ("linked", "ppr", "semantic"):
        command = ["search", "Lake", *OPTIONS, "--variant", variant, "--json"]
        printed = finished(*command)
        result = json.loads(printed)
        assert result["variant"] == variant
        assert all(one["source"].startswith("docs/") for one in result["results"])
        scores = [one["score"] for one in result["results"]]
        assert len(scores) == 3
        assert scores == sorted(scores, reverse=True)
    assert "retrieval.variant" in refused("search", "Lake", *OPTIONS, "--variant", "best")


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_a_folder_and_plain_lines_give_pairs(own: Path) -> None:
    finished("run", *OPTIONS, "--set", "until=pair")
    (pairs,) = own.glob("runs/own/store/pair/*/pairs.parquet")
    found = read_records(pairs, Pair)
    assert len(found) >= 5
    assert {pair.kind for pair in found} <= {"easy", "hard", "format"}
