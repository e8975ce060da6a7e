"""Read the documents of a corpus file (TeaRAG 4.1).

Input: a file. Output: `Document`s with title and text, streamed where the format allows it. Files
of running text (Markdown, text, HTML, PDF, Word) are read by `pipeline.corpus.prose`. The other
formats:

=========  ====================================================================================
jsonl      one object per line: ``text`` (or ``content``, ``body``, ``page_content``), or
           ``contents`` (title, newline, text: the Wikipedia dump of Search-R1); ``title``; ``id``,
           ``_id`` or ``doc_id`` is kept; ``url`` or ``source`` says where the text comes from
json       a list of such objects; CSV, TSV and Parquet files have such rows
titles     an object that maps titles to lists of sentences
dpr-tsv    the DPR Wikipedia: ``id``, ``text``, ``title``, tab-separated
questions  the context paragraphs of a data set's question file
=========  ====================================================================================
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Literal

from pipeline.core.content_cache import ContentCache
from pipeline.core.errors import InputError
from pipeline.corpus.folders import FoundFile
from pipeline.corpus.json_stream import iterate_object
from pipeline.corpus.prose import is_prose, read_prose
from pipeline.corpus.questions.load import read_contexts
from pipeline.corpus.raw_files import read_rows, read_table
from pipeline.corpus.raw_records import Document, RawRecord, brief, join_sentences, titled
from pipeline.corpus.text_files import first_character

_TITLES_LOOKED_AT = 20  # members of an object that decide whether it maps titles to sentences
_TEXTS = ("text", "content", "body", "page_content")
_TABLES = (".csv", ".tsv", ".parquet")
Format = Literal["auto", "jsonl", "json", "titles", "dpr-tsv", "questions"]


def read_documents(
    file: Path | FoundFile,
    format: Format = "auto",
    dataset: str | None = None,
    kept: ContentCache | None = None,
) -> Iterator[Document]:
    """Yield the documents of one file.

    ``dataset`` is the data set of a question file (format ``questions``); ``kept`` is as in
    `read_prose`. The name of a found file
    is the source of its documents that have no address. Raises InputError when the file is missing,
    empty, malformed or of another format, or when ``auto`` does not recognize it; for running text
    as `read_prose` does.
    """
    path, name = (file, "") if isinstance(file, Path) else (file.path, file.name)
    if isinstance(file, FoundFile) and file.problem is not None:
        raise InputError.at(path, None, file.problem)
    empty = True
    for document in _documents(path, format, dataset, kept):
        empty = False
        source = document.source
        if not source or source.startswith("#"):
            source = name + source
        yield Document(document.title, document.text, document.id, source)
    if empty:
        raise InputError.at(path, None, "no documents found")


def is_read(path: Path) -> bool:
    """Whether the name of a file says that documents are read from it."""
    return is_prose(path) or path.suffix in (*_TABLES, ".jsonl", ".json")


def skips(found: FoundFile, *, strict: bool) -> bool:
    """Whether a run goes on without this file if it cannot be read.

    It does for empty files, for running text, and for all files that are found in a directory or by
    a glob. A file of records that the configuration names must be whole.
    """
    if strict or not found.named or is_prose(found.path):
        return not strict
    return found.path.is_file() and not found.path.stat().st_size


def _documents(
    path: Path, format: Format, dataset: str | None, kept: ContentCache | None
) -> Iterator[Document]:
    if format == "auto" and is_prose(path):
        return read_prose(path, kept)
    resolved = _detect_format(path, dataset) if format == "auto" else format
    if resolved == "titles":
        return _titles(path)
    if resolved == "questions":
        if dataset is None:
            problem = "format questions needs `dataset` (musique, hotpotqa, ...)"
            raise InputError.at(path, None, problem)
        return read_contexts(path, dataset)
    rows = read_table(path, "\t") if resolved == "dpr-tsv" else read_rows(path)
    return map(_from_row, rows)


def _detect_format(path: Path, dataset: str | None) -> Format:
    first = "" if path.suffix in _TABLES else first_character(path)
    if first == "{" and path.suffix != ".jsonl" and _has_titles(path):
        return "titles"
    if path.suffix not in (*_TABLES, ".jsonl") and first not in ("[", "{", ""):
        problem = "not a kind of file that is read; convert it to .md, .txt, .html or .jsonl"
        raise InputError.at(path, None, problem)
    row = next(iter(read_rows(path)))  # raises InputError for an empty file
    if "contents" in row.value or {"title", "text"} <= row.value.keys():
        return "jsonl"
    if dataset is not None:
        return "questions"
    if "question" not in row.value and not row.value.keys().isdisjoint(_TEXTS):
        return "jsonl"
    raise row.error(
        f"expected `text` (and `title`), or `contents`; the record has {row.fields()}; for "
        "questions with context paragraphs, set format: questions and dataset"
    )


def _has_titles(path: Path) -> bool:
    """Whether a JSON object maps its first names to lists of sentences."""
    number = 0
    for number, (_, value) in enumerate(iterate_object(path), start=1):
        if not isinstance(value, list) or any(isinstance(item, dict) for item in value[:1]):
            return False
        if number == _TITLES_LOOKED_AT:
            break
    return number > 0


def _from_row(row: RawRecord) -> Document:
    document_id, source = row.identifier("id", "_id", "doc_id"), _source(row)
    if "contents" in row.value and "text" not in row.value:
        document = titled(row, row.text("contents"), "contents")
        return Document(document.title, document.text, document_id, source)
    title = row.value.get("title", row.path.stem)
    if not isinstance(title, str):
        raise row.error(f"title: expected a string, got {brief(title)}")
    name, text = row.present(*_TEXTS)
    if not isinstance(text, str):
        raise row.error(f"{name}: expected a string, got {brief(text)}")
    return Document(title.strip(), text.strip(), document_id, source)


def _source(row: RawRecord) -> str:
    value = row.find("url", "source")
    return value.strip() if isinstance(value, str) else ""


def _titles(path: Path) -> Iterator[Document]:
    for number, (title, sentences) in enumerate(iterate_object(path), start=1):
        row = RawRecord({title: sentences}, path, number)
        row.check_encodable()
        yield Document(title, join_sentences(row, sentences, title))
