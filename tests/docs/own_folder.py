"""A folder of closed-world documents in five formats, with plain question lines, as people have."""

from __future__ import annotations

import csv
import html
import json
from collections.abc import Mapping
from itertools import chain
from pathlib import Path
from typing import Any

from pipeline.closed_world.write import write_closed_world

SIZES = {
    "musique_train": 500, "musique_sampling": 20, "musique_dev": 0, "musique_test": 12,
    "hotpotqa_sampling": 20, "hotpotqa_dev": 0, "hotpotqa_test": 0, "wiki2_test": 0,
    "nq_sampling": 20, "nq_dev": 0, "nq_test": 12,
}  # fmt: skip


def write_own_folder(folder: Path, documents: int = 400, sizes: Mapping[str, int] = SIZES) -> Path:
    """Write ``docs/``, ``questions.jsonl``, ``test.csv`` and ``cold-start.jsonl``; returns it."""
    world = folder / "world"
    write_closed_world(world, seed=0, documents=documents, sizes=dict(sizes))
    records = _lines(world / "corpus.jsonl")
    docs = folder / "docs"
    for name in ("notes", "pages", "plain", "tables"):
        (docs / name).mkdir(parents=True)
    for number, record in enumerate(records):
        title, text, name = record["title"], record["text"], f"{number:04d}"
        if number % 5 == 0:
            (docs / "notes" / f"{name}.md").write_text(f"# {title}\n\n{text}\n")
        elif number % 5 == 1:
            page = f"<title>{html.escape(title)}</title><h1>{html.escape(title)}</h1><p>{html.escape(text)}"
            (docs / "pages" / f"{name}.html").write_text(page)
        elif number % 5 == 2:
            named = docs / "plain" / f"{title}.txt"  # a title may occur twice
            if named.exists():
                named = docs / "plain" / name / f"{title}.txt"
                named.parent.mkdir()
            named.write_text(text)
    with (docs / "tables" / "rest.csv").open("w", newline="") as stream:
        writer = csv.writer(stream)
        writer.writerow(["title", "text"])
        writer.writerows([record["title"], record["text"]] for record in records[3::5])
    _write(
        docs / "tables" / "rest.jsonl",
        [{"title": r["title"], "text": r["text"]} for r in records[4::5]],
    )
    (docs / "notes" / "empty.md").touch()
    (docs / "pages" / "picture.png").write_bytes(b"\x89PNG")
    sampling = chain(
        _lines(world / "nq_sampling.jsonl"),
        json.loads((world / "hotpotqa_sampling.json").read_text()),
        _lines(world / "musique_sampling.jsonl"),
    )
    _write(folder / "questions.jsonl", [_plain(record) for record in sampling])
    test = [
        _plain(r) for r in _lines(world / "nq_test.jsonl") + _lines(world / "musique_test.jsonl")
    ]
    with (folder / "test.csv").open("w", newline="") as stream:
        writer = csv.writer(stream)
        writer.writerow(["question", "answer"])
        writer.writerows([one["question"], one["answer"]] for one in test)
    (folder / "cold-start.jsonl").write_bytes((world / "musique_train.jsonl").read_bytes())
    return folder


def _plain(record: Mapping[str, Any]) -> dict[str, str]:
    answer = record["answer"]
    return {
        "question": record["question"],
        "answer": answer[0] if isinstance(answer, list) else answer,
    }


def _lines(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def _write(path: Path, records: list[dict[str, Any]]) -> None:
    path.write_text("".join(json.dumps(record) + "\n" for record in records))
