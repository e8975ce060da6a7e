"""Check that data files exist, and that their first records have the fields that the stages read.

The readers of the stages are used, so the messages are the same. JSON arrays are streamed. Input:
the path of a file and its settings. Output: a sentence for each fault.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from itertools import islice
from pathlib import Path

from pipeline.config.knowledge import CorpusFile, QuestionFile
from pipeline.core.errors import InputError
from pipeline.core.records import Question
from pipeline.corpus.documents import read_documents
from pipeline.corpus.questions.load import first_questions
from pipeline.corpus.raw_files import read_rows
from pipeline.corpus.text_files import first_character

_RECORDS = 20  # of each file
_WHOLE_BYTES = 1 << 26  # of files that are read as a whole


def question_faults(path: Path, file: QuestionFile) -> Iterator[str]:
    """A sentence when a question file is missing, malformed, or lacks a field of its filter."""
    if fault := _absent(path, f"dataset {file.dataset}"):
        yield fault
        return
    if not _is_quick(path):
        return
    fields: set[str] = set()
    try:
        for row, _ in first_questions(path, file.dataset, _RECORDS, file.filter):
            fields |= row.value.keys()
    except InputError as error:
        yield str(error)
        return
    known = fields | Question.__dataclass_fields__.keys()
    missing = [name for name in file.filter if name not in known]
    if missing:
        yield (
            f"{path}: filter: the first {_RECORDS} records have no field {', '.join(missing)}; "
            f"they have {', '.join(sorted(fields)[:10])}; correct the filter"
        )


def document_faults(path: Path, file: CorpusFile) -> Iterator[str]:
    """A sentence when a file of documents is missing or malformed."""
    return _faults(path, "corpus.files", lambda: read_documents(path, file.format, file.dataset))


def source_faults(path: Path, key: str, *, listed: bool) -> Iterator[str]:
    """A sentence when the file of a graph is missing, or malformed if it is ``listed`` by lines."""
    return _faults(path, key, lambda: islice(read_rows(path), 1) if listed else ())


def _faults(path: Path, use: str, records: Callable[[], Iterable[object]]) -> Iterator[str]:
    """A sentence when the file is missing, or when one of its first ``records`` is malformed."""
    if fault := _absent(path, use):
        yield fault
    elif _is_quick(path):
        try:
            for _ in islice(records(), _RECORDS):
                pass
        except InputError as error:
            yield str(error)


def is_small(path: Path) -> bool:
    """Whether a file has at most 64 MiB, so that reading all of it takes seconds."""
    return path.stat().st_size <= _WHOLE_BYTES


def _absent(path: Path, use: str) -> str | None:
    if path.is_file():
        return None
    kind = "is a directory" if path.is_dir() else "no such file"
    return (
        f"{path}: {kind} ({use}); name the directory of the data files with --data (DATA=), fetch "
        "the official files with steep data --data DIR, or prepare your own (docs/data.md)"
    )


def _is_quick(path: Path) -> bool:
    """Whether the first records can be read without the whole of a large file."""
    if path.suffix in (".jsonl", ".tsv", ".csv") or is_small(path):
        return True
    try:
        return first_character(path) == "["
    except InputError:
        return True  # reading it raises the error
