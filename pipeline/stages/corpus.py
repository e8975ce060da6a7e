"""Stage ``corpus``: documents to chunks, question files to questions (TeaRAG 4.1, tables 2 and 4).

Input: the files of the configuration's ``data`` and ``corpus`` blocks. Output: ``chunks.parquet``;
the same rows uncompressed in ``chunks.arrow``, for memory-mapping; ``questions/<split>.parquet``
for each split; and ``overlap.json``, the training questions that repeat a held-out question and are
dropped. A question whose supporting facts name no sentence of its context is left out of the
training splits, because rewards that match evidence would be zero for it; held-out splits keep it.
The notes of the manifest count what was left out and what has no golden evidence.
"""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path

from pipeline.config import CorpusFile, QuestionFile
from pipeline.core.atomic import parquet_writer, write_json
from pipeline.core.errors import InputError
from pipeline.core.record_io import write_parquet
from pipeline.core.records import Chunk, Question
from pipeline.corpus.chunk import chunk_documents
from pipeline.corpus.documents import Document, read_documents
from pipeline.corpus.overlap import THRESHOLD, Overlap, find_overlaps
from pipeline.corpus.questions.load import load_questions
from pipeline.corpus.questions.shared import NO_FACT_FOUND
from pipeline.run.context import StageContext

TRAINED = ("sft", "sampling")
HELD_OUT = ("validation", "test")
_ROWS = 16_384  # chunks per row group and record batch: about 30 MB of Python objects


def run(context: StageContext) -> dict[str, int]:
    """Write the stage's files and return the counts of documents, chunks and questions per split.

    Raises InputError when an input file is unusable, the corpus has no text, a question id is
    repeated, or all questions of a training split repeat held-out questions.
    """
    data = context.config.data
    notes: dict[str, Counter[str]] = {name: Counter() for name in (*TRAINED, *HELD_OUT)}
    splits = {name: _read_split(context, name, getattr(data, name), notes[name]) for name in notes}
    _report(context, notes)
    dropped = _drop_overlaps(splits)
    counts = {"documents": 0, "documents_without_text": 0}
    documents = _documents(context, context.config.corpus.files, counts)
    chunks = chunk_documents(documents, context.config.corpus.chunk_words)
    counts["chunks"] = write_chunks(context.output, chunks)
    if counts["chunks"] == 0:
        raise InputError("corpus.files: no document has any text; name files with documents")
    for name, questions in splits.items():
        path = context.output / "questions" / f"{name}.parquet"
        counts[name] = write_parquet(path, questions, Question)
    _write_overlaps(context.output / "overlap.json", dropped)
    context.work.update(documents=counts["documents"], chunks=counts["chunks"])
    counts["overlaps"] = sum(len(overlaps) for overlaps in dropped.values())
    return counts


def write_chunks(folder: Path, chunks: Iterable[Chunk]) -> int:
    """Write both tables of chunks in groups of rows and return the number of chunks.

    Chunks are streamed, because the full Wikipedia does not fit in memory.
    """
    import pyarrow as pa

    names = [field.name for field in dataclasses.fields(Chunk)]
    schema = pa.schema([(name, pa.string()) for name in names])
    folder.mkdir(parents=True, exist_ok=True)
    total = 0
    with (
        parquet_writer(folder / "chunks.parquet", schema) as packed,
        pa.OSFile(str(folder / "chunks.arrow"), "wb") as file,
        pa.ipc.new_file(file, schema) as plain,
    ):
        for group in _groups(chunks, _ROWS):
            columns = {name: [getattr(chunk, name) for chunk in group] for name in names}
            table = pa.table(columns, schema=schema)
            packed.write_table(table)
            plain.write_table(table)
            total += len(group)
    return total


def _groups(chunks: Iterable[Chunk], size: int) -> Iterator[list[Chunk]]:
    group: list[Chunk] = []
    for chunk in chunks:
        group.append(chunk)
        if len(group) == size:
            yield group
            group = []
    if group:
        yield group


def _documents(
    context: StageContext, files: Sequence[CorpusFile], counts: dict[str, int]
) -> Iterator[Document]:
    for file in files:
        for document in read_documents(context.resolve(file.path), file.format, file.dataset):
            counts["documents"] += 1
            counts["documents_without_text"] += not document.text.strip()
            yield document


def _read_split(
    context: StageContext, name: str, files: Sequence[QuestionFile], notes: Counter[str]
) -> list[Question]:
    by_id: dict[str, Question] = {}
    for number, file in enumerate(files):
        path = context.resolve(file.path)
        questions = load_questions(
            path,
            file.dataset,
            required=file.filter,
            select=file.select,
            limit=file.limit,
            seed=context.seed + number,
            drop_unfounded=name in TRAINED,
            counts=notes,
        )
        for question in questions:
            if question.question_id in by_id:
                raise InputError.at(
                    path,
                    None,
                    f"question id {question.question_id} occurs twice in data.{name}; name each "
                    "file once per split, or make the ids distinct",
                )
            by_id[question.question_id] = question
    return list(by_id.values())


def _report(context: StageContext, notes: Mapping[str, Counter[str]]) -> None:
    """Write the counts of every split to the log and to the notes of the manifest."""
    counts = {name: {reason: n for reason, n in notes[name].items() if n} for name in notes}
    for name, reasons in counts.items():
        for reason, count in reasons.items():
            left_out = reason == NO_FACT_FOUND and name in TRAINED
            print(f"data.{name}: {count:,} {reason}" + ("; left out" if left_out else ""))
    context.notes["questions"] = {name: reasons for name, reasons in counts.items() if reasons}


def _drop_overlaps(splits: dict[str, list[Question]]) -> dict[tuple[str, str], list[Overlap]]:
    """Remove overlapping questions from the training splits; return them by (split, held-out
    split)."""
    dropped = {}
    for name in TRAINED:
        before = splits[name]
        for heldout in HELD_OUT:
            overlaps = find_overlaps(before, splits[heldout]) if before and splits[heldout] else []
            dropped[name, heldout] = overlaps
            ids = {overlap.question_id for overlap in overlaps}
            splits[name] = [
                question for question in splits[name] if question.question_id not in ids
            ]
        if before and not splits[name]:
            raise InputError(
                f"data.{name}: every question repeats one of data.test or data.validation; "
                "use other files, or fewer held-out questions of the same file (select: random)"
            )
    return dropped


def _write_overlaps(path: Path, dropped: dict[tuple[str, str], list[Overlap]]) -> None:
    pairs = [
        {"split": name, "heldout_split": heldout, **dataclasses.asdict(overlap)}
        for (name, heldout), overlaps in dropped.items()
        for overlap in overlaps
    ]
    counts = {
        f"{name} in {heldout}": {
            kind: sum(overlap.kind == kind for overlap in overlaps) for kind in ("exact", "near")
        }
        for (name, heldout), overlaps in dropped.items()
    }
    summary = {"threshold": THRESHOLD, "counts": counts, "dropped": pairs}
    write_json(path, summary)
