"""The files that the published configurations read, with a few questions of a closed world each.

Names and formats are those of the publishers (docs/data.md). The corpus is a table of passages of 100
words, cut from one article per title as DPR cut Wikipedia. So a gold paragraph of MuSiQue need not
lie inside one passage.
"""

from __future__ import annotations

import csv
import json
import tempfile
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

from pipeline.closed_world.write import write_closed_world

# Questions by file of the closed world; MuSiQue needs some of each number of hops.
SIZES = {
    "musique_train": 5,
    "musique_dev": 1,
    "musique_test": 1,
    "hotpotqa_train": 3,
    "hotpotqa_dev": 1,
    "wiki2_train": 3,
    "wiki2_dev": 1,
    "nq_sampling": 4,
    "nq_dev": 1,
    "nq_test": 3,
}
DOCUMENTS = 200
MUSIQUE_PARAGRAPHS = 4  # of 20 in the published file
PARAGRAPHS = 3  # of 10 in HotpotQA and 2WikiMultiHopQA
ARTICLES = 40  # in the table of passages
WORDS = 100  # of a passage

Record = dict[str, Any]


def write_data(root: Path, seed: int = 0) -> Path:
    """Write all files below ``root``; returns ``root``."""
    with tempfile.TemporaryDirectory() as folder:
        world = Path(folder) / "world"
        write_closed_world(
            world, seed=seed, documents=DOCUMENTS, sizes=SIZES, unseen_share=0, famous_share=0
        )
        documents = _lines(world / "corpus.jsonl")
        musique = {split: _lines(world / f"musique_{split}.jsonl") for split in ("train", "dev")}
        two_hops = _lines(world / "musique_test.jsonl")
        hotpotqa = {split: _array(world / f"hotpotqa_{split}.json") for split in ("train", "dev")}
        wiki2 = {split: _array(world / f"2wiki_{split}.json") for split in ("train", "dev")}
        sampled, dev, test = (
            _lines(world / f"nq_{split}.jsonl") for split in ("sampling", "dev", "test")
        )
    for split, records in musique.items():
        _write_lines(root / f"musique_ans_v1.0_{split}.jsonl", map(_musique, records))
    _write_array(root / "hotpot_train_v1.1.json", map(_fewer_paragraphs, hotpotqa["train"]))
    _write_array(root / "hotpot_dev_distractor_v1.json", map(_fewer_paragraphs, hotpotqa["dev"]))
    for split, records in wiki2.items():
        _write_array(root / f"2wikimultihopqa/{split}.json", map(_fewer_paragraphs, records))
    _write_lines(root / "nq/train.jsonl", _flashrag(sampled, "train"))
    _write_lines(root / "nq/dev.jsonl", _flashrag(dev, "dev"))
    for dataset, record in zip(("nq", "popqa", "triviaqa"), test, strict=True):
        _write_lines(root / f"{dataset}/test.jsonl", _flashrag([record], "test"))
    _write_lines(root / "bamboogle/test.jsonl", _flashrag(two_hops, "test"))
    dev = (hotpotqa["dev"], wiki2["dev"], musique["dev"])
    every = {
        "train_mixed_9000-cleaned": (hotpotqa["train"], wiki2["train"], musique["train"]),
        "val_mixed_900": dev,
        "test_all": dev,
    }
    for name, sets in every.items():
        rows = [_mixed(*pair) for pair in zip(("hotpotqa", "2wiki", "musique"), sets, strict=True)]
        _write_lines(root / f"search_agent_review/{name}.jsonl", [one for of in rows for one in of])
    supporting = [
        paragraph["title"]
        for record in musique["train"]
        for paragraph in record["paragraphs"]
        if paragraph["is_supporting"]
    ]
    _write_passages(root / "psgs_w100.tsv", documents, supporting)
    return root


def _lines(path: Path) -> list[Record]:
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


def _array(path: Path) -> list[Record]:
    records: list[Record] = json.loads(path.read_text(encoding="utf-8"))
    return records


def _write_lines(path: Path, records: Iterable[Record]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(json.dumps(record) + "\n" for record in records), encoding="utf-8")


def _write_array(path: Path, records: Iterable[Record]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(list(records)), encoding="utf-8")


def _flashrag(records: Sequence[Record], split: str) -> Iterator[Record]:
    for number, record in enumerate(records):
        answer = record["answer"]
        answers = answer if isinstance(answer, list) else [answer]
        text = {"question": record["question"], "golden_answers": answers}
        yield {"id": f"{split}_{number}", **text}


def _mixed(dataset: str, records: Sequence[Record]) -> list[Record]:
    """The rows of SearchAgentReview, which have the ids and answers of their data sets."""
    fields = {"positive_doc_ids": [], "dataset": dataset, "split": "dev"}
    return [
        {
            "id": record.get("_id") or record["id"],
            "question": record["question"],
            "answer": record["answer"],
            **fields,
        }
        for record in records
    ]


def _musique(record: Record) -> Record:
    """The record without the field that only the closed world has, and with fewer paragraphs."""
    steps = record["question_decomposition"]
    for step in steps:
        step.pop("support_sentence")
    gold = [part for part in record["paragraphs"] if part["is_supporting"]]
    others = [part for part in record["paragraphs"] if not part["is_supporting"]]
    kept = gold + others[: max(0, MUSIQUE_PARAGRAPHS - len(gold))]
    return {**record, "paragraphs": sorted(kept, key=lambda part: part["idx"])}


def _fewer_paragraphs(record: Record) -> Record:
    gold = {title for title, _ in record["supporting_facts"]}
    needed = [part for part in record["context"] if part[0] in gold]
    others = [part for part in record["context"] if part[0] not in gold]
    return {**record, "context": needed + others[: max(0, PARAGRAPHS - len(needed))]}


def _write_passages(path: Path, documents: Sequence[Record], first: Sequence[str]) -> None:
    """DPR's table: id, text and title of passages of 100 words, of the articles ``first`` and others."""
    titles = [*first, *(document["title"] for document in documents)]
    articles: dict[str, list[str]] = {title: [] for title in dict.fromkeys(titles)}
    for number, title in enumerate(list(articles)):
        if number % 3 == 0:  # an article with other text first, so that borders fall elsewhere
            articles[title] = documents[number]["text"].split() + documents[-number]["text"].split()
    for document in documents:
        articles[document["title"]] += document["text"].split()
    with path.open("w", encoding="utf-8", newline="") as file:
        table = csv.writer(file, delimiter="\t", lineterminator="\n")
        table.writerow(("id", "text", "title"))
        number = 0
        for title, words in list(articles.items())[:ARTICLES]:
            for start in range(0, len(words), WORDS):
                number += 1
                table.writerow((number, " ".join(words[start : start + WORDS]), title))
