"""Stage ``corpus``: documents to chunks (TeaRAG 4.1, table 4).

Input: the files of the configuration's ``corpus`` block. Output: ``chunks.parquet``, and the same
rows uncompressed in ``chunks.arrow``, for memory-mapping.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Iterator, Sequence
from itertools import islice
from pathlib import Path

from pipeline.config import CorpusFile
from pipeline.core.atomic import parquet_writer
from pipeline.core.errors import InputError
from pipeline.core.progress import counted
from pipeline.core.records import Chunk
from pipeline.corpus.chunk import chunk_documents
from pipeline.corpus.documents import read_documents
from pipeline.corpus.raw_records import Document
from pipeline.run.context import StageContext

_ROWS = 16_384  # chunks per row group and record batch: about 30 MB of Python objects


def run(context: StageContext) -> dict[str, int]:
    """Write the stage's files and return the counts of documents and chunks.

    Raises InputError when a file is unusable, or the corpus has no text.
    """
    counts = {"documents": 0, "documents_without_text": 0}
    documents = _documents(context, context.config.corpus.files, counts)
    context.progress.start(None, "chunks")
    chunks = counted(
        chunk_documents(documents, context.config.corpus.chunk_words), context.progress
    )
    counts["chunks"] = write_chunks(context.output, chunks)
    if counts["chunks"] == 0:
        raise InputError("corpus.files: no document has any text; name files with documents")
    context.work.update(documents=counts["documents"], chunks=counts["chunks"])
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


def _documents(
    context: StageContext, files: Sequence[CorpusFile], counts: dict[str, int]
) -> Iterator[Document]:
    for file in files:
        for document in read_documents(context.resolve(file.path), file.format, file.dataset):
            counts["documents"] += 1
            counts["documents_without_text"] += not document.text.strip()
            yield document
