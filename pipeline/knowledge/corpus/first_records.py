"""Check that data files exist, and that their first records have the fields that the stages read.

The readers of the stages are used, so the messages are the same. JSON arrays are streamed. Input:
the path of a file and its settings. Output: a sentence for each fault.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from itertools import islice
from pathlib import Path

from pipeline.config.knowledge import CorpusFile, QuestionFile
from pipeline.core.errors import DependencyError, InputError, missing
from pipeline.core.records import Question
from pipeline.core.row_files import ROW_SUFFIXES, BadRows, first_character
from pipeline.knowledge.corpus.documents import is_read, read_documents, skips
from pipeline.knowledge.corpus.folders import FoundFile, find_files
from pipeline.knowledge.corpus.prose import missing_package
from pipeline.knowledge.corpus.questions.load import read_questions
from pipeline.knowledge.corpus.raw_records import read_rows

_RECORDS = 20  # of each file
_FILES = 20  # of a directory or a glob
_WHOLE_BYTES = 1 << 26  # of files that are read as a whole


def question_faults(path: Path, file: QuestionFile) -> Iterator[str]:
    """A sentence when a question file is missing, malformed, or lacks a field of its filter."""
    fields = set[str]()

    def records() -> Iterator[object]:
        for row in islice(read_rows(path, BadRows()), _RECORDS):
            fields.update(row.value)
        yield from read_questions(path, file.dataset, required=file.filter, rows=_RECORDS)

    yield from (faults := list(_faults(path, f"dataset {file.dataset}", records())))
    known = fields | Question.__dataclass_fields__.keys()
    missing = [name for name in file.filter if name not in known]
    if missing and fields and not faults:
        yield (
            f"{path}: filter: the first {_RECORDS} records have no field {', '.join(missing)}; "
            f"they have {', '.join(sorted(fields)[:10])}; correct the filter"
        )


def document_faults(root: Path, file: CorpusFile, *, strict: bool) -> Iterator[str]:
    """A sentence when a file of documents is missing or malformed.

    Of a directory or a glob the first files are read. If some may be skipped, one must be readable.
    """
    found = find_files(root, file.path)
    if not found:
        yield f"{root / file.path}: no file (corpus.files); correct the name"
    unreadable = []
    for one in islice(found, _FILES):
        documents = islice(read_documents(one, file.format, file.dataset), _RECORDS)
        problems = [one.problem] if one.problem else [*_faults(one.path, "corpus.files", documents)]
        if not skips(one, strict=strict):
            yield from problems
        elif not problems:
            return
        unreadable += problems
    if unreadable and all(skips(one, strict=strict) for one in found):
        yield (
            f"{root / file.path}: none of its first {min(len(found), _FILES)} files can be read "
            f"(corpus.files); the first: {unreadable[0]}"
        )


def skipped_documents(files: Iterable[FoundFile]) -> Counter[str]:
    """The files that are certainly not read, by the reason; no file is opened."""
    reasons: Counter[str] = Counter()
    for found in files:
        package = missing_package(found.path)
        if found.problem is not None:
            reasons[found.problem] += 1
        elif package is not None:
            reasons[str(missing(f"needs {package}", "documents"))] += 1
        elif not found.named and not is_read(found.path):
            reasons[f"{Path(found.name).suffix or 'without a suffix'}, which is not read"] += 1
    return reasons


def source_faults(path: Path, key: str, *, listed: bool) -> Iterator[str]:
    """A sentence when the file of a graph is missing, or malformed if it is ``listed`` by lines."""
    return _faults(path, key, islice(read_rows(path), 1 if listed else 0))


def _faults(path: Path, use: str, records: Iterable[object]) -> Iterator[str]:
    """A sentence when the file is missing, or when one of its ``records`` is malformed."""
    if fault := _absent(path, use):
        yield fault
    elif _is_quick(path):
        try:
            for _ in records:
                pass
        except (InputError, DependencyError) as error:
            yield str(error)


def is_small(*paths: Path) -> bool:
    """Whether files have at most 64 MiB together, so that reading all of them takes seconds."""
    return sum(path.stat().st_size for path in paths) <= _WHOLE_BYTES


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
    if path.suffix.lower() in set(ROW_SUFFIXES) - {".json"} or is_small(path):
        return True
    try:
        return first_character(path) == "["
    except InputError:
        return True  # reading it raises the error
