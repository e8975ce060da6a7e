"""Writes a closed world to disk as raw data for the pipeline's loaders.

Purpose: the data of the embedded configuration. Input: a seed, a number of documents, and the
number of questions of each data set and split. Output: a directory with `corpus.jsonl`, the
annotated `triplets.jsonl` and `hyperedges.jsonl`, questions in the native files of MuSiQue,
HotpotQA, 2WikiMultiHopQA and NQ-open, and at last `world.json`, from which `read_world` regenerates
the world.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from pipeline.closed_world.fact_generation import NO_NEAR_MISSES, NearMisses
from pipeline.closed_world.file_names import FACT_FILES, FILE_NAMES
from pipeline.closed_world.formats import Formatter
from pipeline.closed_world.oracle import Oracle
from pipeline.closed_world.questions import Question
from pipeline.closed_world.schema import ALL_RELATIONS, Fact
from pipeline.closed_world.splits import UNSEEN_SHARE, DrawnQuestions, draw_questions
from pipeline.closed_world.world import World, generate_world
from pipeline.core.atomic import write_json
from pipeline.core.errors import InputError
from pipeline.core.input_files import read_json
from pipeline.core.progress import Progress

_MAX_DOCUMENTS = 10**7  # of a description on disk


def corpus_records(world: World) -> Iterator[dict[str, Any]]:
    """One record {"id", "title", "text"} per document."""
    for document in world.documents:
        yield {"id": document.id, "title": document.title, "text": document.text}


def triplet_records(world: World) -> Iterator[dict[str, Any]]:
    """One record {"head", "relation", "tail", "title", "doc_id", "sentence"} per stated triplet.

    `sentence` is the document's sentence that states the triplet. Head and tail are full names,
    even where the sentence uses an alias. An n-ary fact gives the equivalent binary triplets.
    """
    for document in world.documents:
        for sentence, fact_ids in zip(document.sentences, document.facts, strict=True):
            for head, relation, tail in (t for key in fact_ids for t in triplets_of(world, key)):
                yield {
                    "head": head,
                    "relation": relation,
                    "tail": tail,
                    "title": document.title,
                    "doc_id": document.id,
                    "sentence": sentence,
                }


def triplets_of(world: World, key: str) -> list[tuple[str, str, str]]:
    """(head, relation, tail) of the fact with this id; an n-ary fact has several."""
    fact = world.fact(key)
    surfaces = {role: world.surface(value) for role, value in fact.arguments}
    patterns = ALL_RELATIONS[fact.relation].triplets
    return [(surfaces[head], phrase, surfaces[tail]) for head, phrase, tail in patterns]


def hyperedge_records(world: World) -> Iterator[dict[str, Any]]:
    """One record {"text", "entities", "doc_id"} per sentence with facts; literals are entities."""
    for document in world.documents:
        for text, fact_ids in zip(document.sentences, document.facts, strict=True):
            if not fact_ids:
                continue
            values = (value for key in fact_ids for _, value in world.fact(key).arguments)
            entities = list(dict.fromkeys(map(world.surface, values)))
            yield {"text": text, "entities": entities, "doc_id": document.id}


def _write_lines(path: Path, records: Iterable[dict[str, Any]]) -> int:
    lines = [json.dumps(record, ensure_ascii=False) + "\n" for record in records]
    with path.open("w", encoding="utf-8") as file:
        file.writelines(lines)
    return len(lines)


def _note(oracle: Oracle, question: Question, record: dict[str, Any]) -> dict[str, Any]:
    """The entry of a question in `world.json`."""
    world = oracle.world
    chain = [step.fact for step in question.steps if isinstance(step.fact, Fact)]
    # Comparisons and n-ary facts are not chains; all their facts are needed.
    is_chain = bool(chain) and not question.kind.endswith("comparison")
    return {
        "id": record["_id"] if "_id" in record else record["id"],
        "kind": question.kind,
        "facts": list(question.facts),
        "hops": len(question.steps),
        "shortest_path": oracle.shortest_path(chain) if is_chain else len(question.steps),
        "famous": all(world.entities[step.fact.head].famous for step in question.steps),
    }


def _write_questions(
    path: Path,
    drawn: DrawnQuestions,
    to_record: Callable[[Question], dict[str, Any]],
    oracle: Oracle,
) -> list[dict[str, Any]]:
    """Write one native file; returns the notes on its questions, in order."""
    records = [to_record(question) for question in drawn.questions]
    notes = [
        {**_note(oracle, question, record), "unseen": position in drawn.unseen}
        for position, (question, record) in enumerate(zip(drawn.questions, records, strict=True))
    ]
    if drawn.unseen:
        for record, note in zip(records, notes, strict=True):
            record["split_part"] = "unseen" if note["unseen"] else "seen"
    if path.suffix == ".jsonl":
        _write_lines(path, records)
    else:
        path.write_text(json.dumps(records, ensure_ascii=False) + "\n", encoding="utf-8")
    return notes


def _digest(world: World) -> str:
    """SHA-256 of the corpus, with which `read_world` checks the regenerated world."""
    digest = hashlib.sha256()
    for record in corpus_records(world):
        digest.update(json.dumps(record, ensure_ascii=False).encode())
    return digest.hexdigest()


def write_closed_world(
    directory: Path,
    *,
    seed: int,
    documents: int,
    sizes: Mapping[str, int],
    unseen_share: float = UNSEEN_SHARE,
    famous_share: float = 0.0,
    comparison_share: float = 0.0,
    near_misses: NearMisses = NO_NEAR_MISSES,
    progress: Progress | None = None,
) -> dict[str, int]:
    """Write a closed world and its questions; returns the number of records per file.

    `world.json` holds, per file, a note on every question in the order of the file: id, kind,
    facts, hops, shortest_path, famous (all its heads belong to the famous core) and unseen.

    Args:
        directory: where to write; created if it is missing.
        seed: of the world and of the draw of questions.
        documents: number of documents in the corpus.
        sizes: "<dataset>_<split>" -> number of questions, for the data sets musique, hotpotqa,
            wiki2 and nq and the splits train, sampling, dev and test. Each gives a file unless 0.
        unseen_share: share of every test split whose entities occur in no other split's question.
        famous_share: share of chains with a famous fact, see `draw_questions`.
        comparison_share: share of training questions that compare, see `draw_questions`.
        near_misses: what makes wrong answers partly or accidentally right.
        progress: counts the files of questions.

    Raises:
        InputError: `documents` is too small, or the world holds too few questions.
    """
    progress = progress or Progress()
    progress.start(sum(size > 0 for size in sizes.values()), "question files")
    world = generate_world(seed, documents=documents, near_misses=near_misses)
    questions = draw_questions(
        world, sizes,
        unseen_share=unseen_share, famous_share=famous_share, comparison_share=comparison_share,
    )  # fmt: skip
    formatter, oracle = Formatter(world), Oracle(world)
    directory.mkdir(parents=True, exist_ok=True)
    facts = corpus_records(world), triplet_records(world), hyperedge_records(world)
    counts = {
        Path(name).stem: _write_lines(directory / name, records)
        for name, records in zip(FACT_FILES, facts, strict=True)
    }
    notes = {}
    for (dataset, split), drawn in sorted(questions.items()):
        name = FILE_NAMES[dataset].format(split)
        to_record = getattr(formatter, dataset)
        notes[name] = _write_questions(directory / name, drawn, to_record, oracle)
        counts[f"{dataset}_{split}"] = len(drawn.questions)
        progress.advance()
    summary = {
        "seed": seed,
        "documents": documents,
        **{name: share for name, share in near_misses._asdict().items() if share},
        "corpus_sha256": _digest(world),
        "entities": len(world.entities),
        "facts": len(world.facts),
        "nary_facts": len(world.nary),
        "unseen_share": unseen_share,
        "counts": counts,
        "questions": notes,
    }
    write_json(directory / "world.json", summary)
    return counts


def read_world(directory: Path) -> World:
    """The world of a directory from `write_closed_world`, regenerated and checked.

    Raises:
        InputError: `world.json` is unreadable, or this version generates a different world.
    """
    path = directory / "world.json"
    summary = read_json(path)
    seed, documents, digest = (summary.get(k) for k in ("seed", "documents", "corpus_sha256"))
    if type(seed) is not int or type(documents) is not int or not 0 < documents <= _MAX_DOCUMENTS:
        raise InputError.at(path, "seed or documents: no number; write the world again")
    shares = [summary.get(name, 0.0) for name in NearMisses._fields]
    if not all(isinstance(share, int | float) and 0 <= share <= 1 for share in shares):
        names = " or ".join(NearMisses._fields)
        raise InputError.at(path, f"{names}: no share; write the world again")
    world = generate_world(seed, documents=documents, near_misses=NearMisses(*shares))
    if _digest(world) != digest:
        raise InputError.at(path, "comes from another version of the generator; write it again")
    return world
