"""Stage ``corpus``: documents to chunks (TeaRAG 4.1, table 4).

Input: the files of the configuration's ``corpus`` block. Output: ``chunks.parquet``, the same rows
uncompressed in ``chunks.arrow``, for memory-mapping, and ``skipped.json``: the files that were not
read and the numbers of malformed rows, with the reasons. With ``corpus.add_gold`` the questions are
inputs, and ``added_gold.json`` has title and file of every gold passage that was added.
"""

from __future__ import annotations

import dataclasses
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from functools import cache
from itertools import chain, islice
from pathlib import Path

from pipeline.config import Corpus
from pipeline.core.atomic import parquet_writer, write_json
from pipeline.core.content_cache import ContentCache, open_cache
from pipeline.core.errors import DependencyError, InputError
from pipeline.core.progress import counted
from pipeline.core.records import Chunk
from pipeline.core.row_files import BadRows
from pipeline.core.text import file_name
from pipeline.corpus.chunk import chunk_documents
from pipeline.corpus.coverage import GoldCoverage
from pipeline.corpus.documents import is_streamed, read_documents, skips
from pipeline.corpus.folders import find_files
from pipeline.corpus.prose import is_converted
from pipeline.corpus.questions.load import read_contexts
from pipeline.corpus.raw_records import Document
from pipeline.run.context import StageContext
from pipeline.stages.coverage import questions_by_split
from pipeline.stages.questions import question_files

ADDED = "added_gold.json"
Skipped = dict[str, str | int]  # file and reason; rows if only so many rows were left out
_ROWS = 16_384  # chunks per row group and record batch: about 30 MB of Python objects


def run(context: StageContext) -> dict[str, int]:
    """Write the stage's files and return the counts of files, documents and chunks.

    Raises InputError when a file is unusable that must not be skipped (`skips`), or when the corpus
    has no text.
    """
    counts = {"files": 0, "documents": 0, "documents_without_text": 0, "duplicate_passages": 0}
    skipped: list[Skipped] = []
    for file in context.config.corpus.files:
        context.resolve(file.path)
    kept = cache(lambda: open_cache(context.config.cache_dir))
    settings = context.config.corpus
    documents = read_corpus(settings, context.data_root, counts, skipped, kept)
    context.progress.start(None, "chunks")
    if settings.add_gold:
        chunks = _with_gold(context, documents, counts)
    else:
        chunks = chunk_documents(documents, settings.chunk_words, counts)
    counts["chunks"] = write_chunks(context.output, counted(chunks, context.progress))
    rows = [one for one in skipped if "rows" in one]
    counts["skipped_files"] = len(skipped) - len(rows)
    write_json(context.output / "skipped.json", skipped)
    first = f"{skipped[0]['file']}: {skipped[0]['reason']}" if skipped else ""
    if counts["chunks"] == 0:
        reason = f"; {len(skipped):,} files have faults, the first: {first}" if skipped else ""
        raise InputError(f"corpus.files: no document has any text{reason}; name other files")
    if files := counts["skipped_files"]:
        first = next(f"{one['file']}: {one['reason']}" for one in skipped if "rows" not in one)
        print(f"corpus.files: {files:,} files skipped (skipped.json); the first: {first}")
    if rows:
        counts["skipped_rows"] = sum(int(one["rows"]) for one in rows)
        first = f"{rows[0]['file']}: {rows[0]['reason']}"
        noun = "row" if counts["skipped_rows"] == 1 else "rows"
        print(
            f"corpus.files: {counts['skipped_rows']:,} malformed {noun} left out (skipped.json); "
            f"the first: {first}"
        )
    if repeated := counts["duplicate_passages"]:
        print(f"corpus.files: {repeated:,} passages repeat the title and text of another; merged")
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
        remaining = iter(chunks)
        while group := list(islice(remaining, _ROWS)):
            columns = {name: [getattr(chunk, name) for chunk in group] for name in names}
            table = pa.table(columns, schema=schema)
            packed.write_table(table)
            plain.write_table(table)
            total += len(group)
    return total


def read_corpus(
    settings: Corpus,
    root: Path,
    counts: dict[str, int],
    skipped: list[Skipped],
    kept: Callable[[], ContentCache | None] = lambda: None,
) -> Iterator[Document]:
    """The documents of a corpus; ``kept`` opens the cache of converted files.

    Adds to the counts of files and documents, and to the skipped files. Raises InputError and
    DependencyError for files that must not be skipped.
    """
    for file in settings.files:
        for found in find_files(root, file.path):
            bad = BadRows()
            try:
                if not found.named and is_streamed(found.path):
                    # A file of a folder that is broken at its end is skipped whole.
                    deque(read_documents(found, file.format, file.dataset), maxlen=0)
                cached = kept() if is_converted(found.path) else None
                for document in read_documents(found, file.format, file.dataset, cached, bad):
                    counts["documents"] += 1
                    counts["documents_without_text"] += not document.text.strip()
                    yield document
                counts["files"] += 1
            except (InputError, DependencyError) as error:
                if not skips(found, strict=settings.strict):
                    raise
                skipped.append({"file": found.name, "reason": _reason(error, found.path)})
                continue
            if bad.first is not None:
                if settings.strict:
                    raise bad.first
                reason = _reason(bad.first, found.path)
                skipped.append({"file": found.name, "rows": bad.count, "reason": reason})


def _reason(error: Exception, path: Path) -> str:
    reason = str(error).removeprefix(file_name(path)).lstrip(": ")
    return f"line {reason}" if reason[:1].isdigit() else reason


def _with_gold(
    context: StageContext, documents: Iterator[Document], counts: dict[str, int]
) -> Iterator[Chunk]:
    """The chunks of all documents, then of the gold passages that these lack."""
    coverage = GoldCoverage(questions_by_split(context.inputs))
    added: list[dict[str, str]] = []

    def gold() -> Iterator[Document]:
        for file in question_files(context.config):
            for document in _paragraphs(context.resolve(file.path), file.dataset):
                if coverage.find_gold(document.title, document.text):
                    added.append({"title": document.title, "file": file.path})
                    yield Document(document.title, document.text, source=file.path)

    # gold() begins after the chunks of all other documents.
    everything = chain(documents, gold())
    for chunk in chunk_documents(everything, context.config.corpus.chunk_words, counts):
        coverage.find_gold(chunk.title, chunk.text)
        yield chunk
    counts["gold_passages_added"] = len(added)
    write_json(context.output / ADDED, added)
    print(f"corpus.add_gold: {len(added):,} gold passages of question files added ({ADDED})")


def _paragraphs(path: Path, dataset: str) -> Iterator[Document]:
    """The paragraphs of a question file; none, and a line in the log, if it holds none."""
    documents = read_contexts(path, dataset)
    try:
        yield from islice(documents, 1)
    except InputError as error:
        print(f"corpus.add_gold: {error}")
    yield from documents
