"""Data files: whether they are there, and whether their first records have what the stages read.

The readers are those of the stages, so a message is the one that the stage would give. Before a run only
the first records of a file are read; JSON arrays are streamed. ``steep check`` also reads small question
files whole, and says what the stages will leave out.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from itertools import islice
from pathlib import Path

from pipeline.config import Config, QuestionFile
from pipeline.config.run import SFT
from pipeline.core.errors import InputError
from pipeline.core.records import Question
from pipeline.corpus.documents import read_documents
from pipeline.corpus.questions.load import Notes, first_questions
from pipeline.corpus.raw_files import read_rows
from pipeline.corpus.text_files import first_character
from pipeline.stages.questions import TRAINED, lines_of, read_split
from tasks.checks.uses import plain

_RECORDS = 20  # of each file
_WHOLE_BYTES = 1 << 26  # of files that are read as a whole
_SPLITS = ("sft", "sampling", "validation", "test")


def data_faults(settings: Config, stages: Collection[str]) -> Iterator[str]:
    """A sentence for each data file of the stages that is missing or malformed, and for empty splits."""
    names = plain(stages)
    read: set[tuple[str, str]] = set()
    for split in _SPLITS:
        files: tuple[QuestionFile, ...] = getattr(settings.data, split)
        if f"questions-{split}" not in names:
            continue
        if not files and _is_needed(settings, split):
            yield f"data.{split} has no files, and the run needs its questions; add one"
        for file in files:
            path = _raw(settings, file.path)
            if path is None or (file.path, file.dataset) in read:
                continue
            read.add((file.path, file.dataset))
            yield from question_faults(path, file)
    for document in settings.corpus.files if "corpus" in names else ():
        path = _raw(settings, document.path)
        if path is not None and (fault := _absent(path, "corpus.files")):
            yield fault
        elif path is not None and _is_quick(path):
            try:
                for _ in islice(read_documents(path, document.format, document.dataset), _RECORDS):
                    pass
            except InputError as error:
                yield str(error)
    graph, hyper = settings.graph, settings.hypergraph
    if "graph" in names and graph.source in ("annotated", "openie") and graph.path:
        yield from _source_faults(
            settings, graph.path, "graph.path", listed=graph.source == "annotated"
        )
    if "hypergraph" in names and hyper.source == "annotated" and hyper.path:
        yield from _source_faults(settings, hyper.path, "hypergraph.path", listed=True)


def data_notes(settings: Config, stages: Collection[str]) -> Iterator[str]:
    """A sentence for everything that the stages will leave out of the questions or find odd in them.

    Every record is read, as the stages read them; splits with a file of more than 64 MiB are left
    out. Raises InputError for a malformed record.
    """
    for split in _SPLITS:
        if f"questions-{split}" not in plain(stages):
            continue
        files = [(file, _raw(settings, file.path)) for file in getattr(settings.data, split)]
        small = [(file, path) for file, path in files if path is not None and _is_small(path)]
        if len(small) == len(files):
            notes = Notes()
            read_split(split, small, settings.seed, notes)
            yield from lines_of(f"data.{split}", notes, for_training=split in TRAINED)


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
            f"{path}: filter: the first {_RECORDS} records have no field {', '.join(missing)}; they have "
            f"{', '.join(sorted(fields)[:10])}; correct the filter"
        )


def _source_faults(settings: Config, name: str, key: str, *, listed: bool) -> Iterator[str]:
    path = _raw(settings, name)
    if path is None:
        return
    if fault := _absent(path, key):
        yield fault
    elif listed and _is_quick(path):
        try:
            next(iter(read_rows(path)))
        except InputError as error:
            yield str(error)


def _is_needed(settings: Config, split: str) -> bool:
    if split == "sampling":
        return settings.rounds > 0
    if split == "sft":
        return settings.start == SFT
    return split == settings.evaluation.split


def _raw(settings: Config, name: str) -> Path | None:
    """The path of a data file; None for a file that the closed world will hold."""
    if settings.data.closed_world is not None and not Path(name).is_absolute():
        return None
    return Path(settings.data.root or ".") / name


def _absent(path: Path, use: str) -> str | None:
    if path.is_file():
        return None
    kind = "is a directory" if path.is_dir() else "no such file"
    return (
        f"{path}: {kind} ({use}); name the directory of the data files with --data (DATA=), fetch the official "
        "files with steep data --data DIR, or prepare your own (docs/data.md)"
    )


def _is_small(path: Path) -> bool:
    return path.stat().st_size <= _WHOLE_BYTES


def _is_quick(path: Path) -> bool:
    """Whether the first records can be read without the whole of a large file."""
    if path.suffix in (".jsonl", ".tsv", ".csv") or _is_small(path):
        return True
    try:
        return first_character(path) == "["
    except InputError:
        return True  # reading it says what is wrong
