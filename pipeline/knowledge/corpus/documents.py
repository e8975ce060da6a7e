"""Read the documents of a corpus file (TeaRAG 4.1).

Input: a file. Output: `Document`s with title and text, streamed where the format allows it. Files
of running text (Markdown, text, HTML, PDF, Word) are read by `pipeline.knowledge.corpus.prose`. The
other formats:

=========  ====================================================================================
jsonl      one object per line: ``text`` (or ``content``, ``body``, ``page_content``), or
           ``contents`` (title, newline, text: the Wikipedia dump of Search-R1); ``title``; ``id``,
           ``_id`` or ``doc_id`` is kept; ``url`` or ``source`` says where the text comes from;
           title and source may be in ``metadata`` (LangChain)
json       a list of such objects; CSV, TSV, Parquet and Arrow files have such rows
titles     an object that maps titles to lists of sentences
dpr-tsv    the DPR Wikipedia: ``id``, ``text``, ``title``, tab-separated
questions  the context paragraphs of a data set's question file
=========  ====================================================================================
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any, Literal

from pipeline.core.content_cache import ContentCache
from pipeline.core.errors import InputError, Place
from pipeline.core.json_stream import iterate_object
from pipeline.core.row_files import ROW_SUFFIXES, BadRows, first_character, iterate_rows
from pipeline.core.text import file_name
from pipeline.knowledge.corpus.folders import FoundFile
from pipeline.knowledge.corpus.prose import is_prose, read_prose
from pipeline.knowledge.corpus.questions.native import contexts
from pipeline.knowledge.corpus.raw_records import (
    Document,
    RawRecord,
    brief,
    encodable,
    join_sentences,
    parsed_rows,
    read_rows,
    titled,
)

_LOOKED_AT = 20  # members that tell an object of titles
_DESCRIBED = ("metadata", "meta")  # objects that hold title and source in other libraries
_TEXTS = ("text", "content", "body", "page_content")
Format = Literal["auto", "jsonl", "json", "titles", "dpr-tsv", "questions"]


def read_documents(
    file: Path | FoundFile,
    format: Format = "auto",
    dataset: str | None = None,
    kept: ContentCache | None = None,
    bad: BadRows | None = None,
) -> Iterator[Document]:
    """Yield the documents of one file.

    ``dataset`` is the data set of a question file (format ``questions``); ``kept`` is as in
    `read_prose`. Malformed rows are left out and added to ``bad``. The name of a found file is the
    source of its documents that have no address. Raises InputError when the file is missing, empty,
    broken or of another format, when no row is readable, or when ``auto`` does not recognize it;
    for running text as `read_prose` does.
    """
    path, name = (file, "") if isinstance(file, Path) else (file.path, file.name)
    with Place(path):
        if isinstance(file, FoundFile) and file.problem is not None:
            raise InputError(file.problem)
        empty = True
        for document in _documents(path, format, dataset, kept, BadRows() if bad is None else bad):
            empty = False
            is_part = not document.source or document.source.startswith("#")
            yield replace(document, source=name + document.source) if is_part else document
        if empty:
            raise InputError("no documents found")


def is_read(path: Path) -> bool:
    """Whether the name of a file says that documents are read from it."""
    return is_prose(path) or path.suffix.lower() in ROW_SUFFIXES


def is_streamed(path: Path) -> bool:
    """Whether rows of this file are read before its end, at which it may turn out to be broken."""
    return path.suffix.lower() in ROW_SUFFIXES and path.suffix.lower() != ".jsonl"


def skips(found: FoundFile, *, strict: bool) -> bool:
    """Whether a run goes on without this file if it cannot be read.

    It does for empty files, for running text, and for all files that are found in a directory or by
    a glob. A file of records that the configuration names must not be broken.
    """
    if strict or not found.named or is_prose(found.path):
        return not strict
    return found.path.is_file() and not found.path.stat().st_size


def _documents(
    path: Path, format: Format, dataset: str | None, kept: ContentCache | None, bad: BadRows
) -> Iterator[Document]:
    if format == "auto" and is_prose(path):
        return read_prose(path, kept)
    suffix = path.suffix.lower()
    if format == "auto":
        first = "" if suffix in ROW_SUFFIXES and suffix != ".json" else first_character(path)
        if first == "{" and _has_titles(path):
            format = "titles"
        elif suffix not in ROW_SUFFIXES and first not in ("[", "{", ""):
            raise InputError(
                "not a kind of file that is read; convert it to .md, .txt, .html or .jsonl"
            )
    if format == "titles":
        return parsed_rows(path, _members(path), bad, _titled_sentences)
    if format == "questions" and dataset is None:
        raise InputError("format questions needs `dataset` (musique, hotpotqa, ...)")
    rows = iterate_rows(path, delimiter="\t") if format == "dpr-tsv" else None
    parse = partial(_from_row, format, dataset, file_name(path.stem))
    return parsed_rows(path, read_rows(path, bad, rows), bad, parse)


def _has_titles(path: Path) -> bool:
    """Whether a JSON object maps most of its first names to lists of sentences."""
    plain = []
    with suppress(InputError):  # raised again by the reader of its format
        for _, value in islice(iterate_object(path), _LOOKED_AT):
            plain.append(isinstance(value, list) and not isinstance([*value, ""][0], dict))
    return 2 * sum(plain) > len(plain)


def _from_row(format: Format, dataset: str | None, name: str, raw: RawRecord) -> list[Document]:
    """The documents of a row; ``name`` is their title where the row has none."""
    row = raw.plain()
    names = row.value.keys()
    if format in ("auto", "questions"):
        known = format == "auto" and ("contents" in names or {"title", "text"} <= names)
        if dataset is not None and not known:
            return contexts(raw, dataset)
        if not known and ("question" in names or names.isdisjoint(_TEXTS)):
            raise InputError(
                f"expected `text` (or {', '.join(_TEXTS[1:])}, contents), and `title`; the record "
                f"has {raw.fields()}; rename the column of the text to text; for questions with "
                "context paragraphs, set format: questions and dataset in corpus.files"
            )
    document_id = row.identifier("id", "_id", "doc_id")
    inside = (part for part in map(row.find, _DESCRIBED) if isinstance(part, dict))
    described = replace(row, value=next(inside, {})).plain().value
    source = _source(row.value) or _source(described)
    if row.find("contents") is not None and row.find("text") in (None, ""):
        document = titled(row, row.text("contents"), "contents")
        return [replace(document, id=document_id, source=source)]
    titles = (row.find("title"), described.get("title"), name)
    title = next(one for one in titles if one is not None)
    field, text = row.present(*_TEXTS)
    return [Document(_plain(row, "title", title), _plain(row, field, text), document_id, source)]


def _plain(row: RawRecord, name: str, value: object) -> str:
    """A text, number or null as stripped text, which may be empty."""
    if isinstance(value, int | float) and not isinstance(value, bool):
        value = str(value)
    return "" if value in (None, "") or str(value).isspace() else row.checked_text(value, name)


def _source(fields: dict[str, Any]) -> str:
    named = (fields.get(name) for name in ("url", "source"))
    texts = (one.strip() for one in named if isinstance(one, str) and encodable(one))
    return next(filter(None, texts), "")


def _members(path: Path) -> Iterator[RawRecord]:
    for number, (title, sentences) in enumerate(iterate_object(path), start=1):
        yield RawRecord({title: sentences}, f"record {number}")


def _titled_sentences(row: RawRecord) -> list[Document]:
    [(title, sentences)] = row.value.items()
    if not encodable(title):
        raise InputError(f"{brief(title)}: expected text without unpaired surrogates")
    return [Document(title, join_sentences(row, sentences, title))]
