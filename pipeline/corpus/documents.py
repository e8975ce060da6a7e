"""Read the documents of a corpus file (TeaRAG 4.1).

Input: a file in one of five formats. Output: `Document`s with title and text, streamed where the
format allows it.

=========  ====================================================================================
jsonl      one object per line: ``title`` and ``text``, or ``contents`` (title, newline, text:
           the Wikipedia dump of Search-R1); ``id``, ``_id`` or ``doc_id`` is kept
json       a list of such objects
titles     an object that maps titles to lists of sentences
dpr-tsv    the DPR Wikipedia: ``id``, ``text``, ``title``, tab-separated
questions  the context paragraphs of a data set's question file
=========  ====================================================================================
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Literal

from pipeline.core.errors import InputError
from pipeline.corpus.json_stream import iterate_object
from pipeline.corpus.questions.load import read_contexts
from pipeline.corpus.raw_files import read_rows, read_table
from pipeline.corpus.raw_records import Document, RawRecord, brief, join_sentences, titled
from pipeline.corpus.text_files import first_character

_TITLES_LOOKED_AT = 20  # members of an object that decide whether it maps titles to sentences
Format = Literal["auto", "jsonl", "json", "titles", "dpr-tsv", "questions"]


def read_documents(
    path: Path, format: Format = "auto", dataset: str | None = None
) -> Iterator[Document]:
    """Yield the documents of one file.

    ``dataset`` is the data set of a question file (format ``questions``). Raises InputError when
    the file is missing, empty, malformed or of another format, or when ``auto`` does not recognize
    it.
    """
    resolved = _detect_format(path, dataset) if format == "auto" else format
    if resolved == "titles":
        documents = _titles(path)
    elif resolved == "dpr-tsv":
        documents = _dpr(path)
    elif resolved == "questions":
        if dataset is None:
            problem = "format questions needs `dataset` (musique, hotpotqa, ...)"
            raise InputError.at(path, None, problem)
        documents = read_contexts(path, dataset)
    else:
        documents = map(_from_row, read_rows(path))
    empty = True
    for document in documents:
        empty = False
        yield document
    if empty:
        raise InputError.at(path, None, "no documents found")


def _detect_format(path: Path, dataset: str | None) -> Format:
    first = first_character(path)
    if path.suffix == ".tsv" or (path.suffix != ".jsonl" and first not in ("[", "{", "")):
        return "dpr-tsv"
    if first == "{" and path.suffix != ".jsonl" and _has_titles(path):
        return "titles"
    row = next(iter(read_rows(path)))  # raises InputError for an empty file
    if "contents" in row.value or {"title", "text"} <= set(row.value):
        return "jsonl" if row.line is not None else "json"
    if dataset is not None:
        return "questions"
    raise row.error(
        f"expected `title` and `text`, or `contents`; the record has {row.fields()}; for questions "
        "with context paragraphs, set format: questions and dataset"
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
    document_id = row.identifier("id", "_id", "doc_id")
    if "contents" in row.value and "text" not in row.value:
        document = titled(row, row.text("contents"), "contents")
        return Document(document.title, document.text, document_id)
    _, title = row.present("title")
    if not isinstance(title, str):
        raise row.error(f"title: expected a string, got {brief(title)}")
    _, text = row.present("text")
    if not isinstance(text, str):
        raise row.error(f"text: expected a string, got {brief(text)}")
    return Document(title.strip(), text.strip(), document_id)


def _titles(path: Path) -> Iterator[Document]:
    for number, (title, sentences) in enumerate(iterate_object(path), start=1):
        row = RawRecord({title: sentences}, path, number)
        row.check_encodable()
        yield Document(title, join_sentences(row, sentences, title))


def _dpr(path: Path) -> Iterator[Document]:
    for row in read_table(path, "\t"):
        if set(row.value) != {"id", "text", "title"}:
            raise row.error(f"expected the columns id, text, title, got {row.fields()}")
        name = row.checked_identifier(row.value["id"], "id").strip()
        yield Document(row.value["title"].strip(), row.value["text"].strip(), name)
