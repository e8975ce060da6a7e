"""Malformed native files: a generator of cases, and the reading that each case must survive.

Input: small valid files of every native format (``formats.yaml``).
Output: `Case`s, each a file with one defect. `read_case` reads a case as the stages do and returns
the error message of a refused file. `problem_of` says what is wrong with an outcome: a message
without file or field, or accepted data that breaks a rule of the records. Any other exception than
a SteepError is a crash and passes through.
"""

from __future__ import annotations

import copy
import gzip
import io
import json
import random
import unicodedata
from collections.abc import Callable, Iterator, Sequence
from dataclasses import astuple, dataclass, field
from pathlib import Path
from typing import Any

import yaml

from pipeline.core.errors import SteepError
from pipeline.core.records import Chunk, Question
from pipeline.core.row_files import BadRows
from pipeline.knowledge.corpus.chunk import chunk_documents
from pipeline.knowledge.corpus.documents import read_documents
from pipeline.knowledge.corpus.questions.load import (
    NO_ANSWER_IN_TEXT,
    UNANSWERED,
    Notes,
    load_questions,
    read_questions,
)
from pipeline.knowledge.corpus.questions.passages import gold_passages
from pipeline.knowledge.corpus.raw_records import Document, encodable
from pipeline.knowledge.graph.build import Graph
from pipeline.knowledge.graph.facts import Facts
from pipeline.knowledge.graph.sources import read_annotated, read_annotated_facts, read_openie

PathInRecord = Sequence[str | int]


@dataclass(frozen=True)
class Format:
    """One native format with valid records; ``formats.yaml`` explains the fields."""

    name: str
    kind: str
    layout: str
    records: Sequence[dict[str, Any]]
    dataset: str | None = None
    texts: Sequence[PathInRecord] = ()
    blank: Sequence[PathInRecord] = ()


@dataclass(frozen=True)
class Case:
    """A file with one defect; ``content`` None is a directory."""

    format: Format
    defect: str
    content: bytes | None
    field: str | None = None  # the changed field of a record; None for a defect of the file
    refused: bool = False  # whether the file must be refused

    @property
    def file_name(self) -> str:
        suffixes = {"jsonl": "jsonl", "csv": "csv", "tsv": "tsv"}
        return f"{self.format.name}.{suffixes.get(self.format.layout, 'json')}"


FORMATS = [
    Format(**table)
    for table in yaml.safe_load(Path(__file__).with_name("formats.yaml").read_text("utf-8"))
]


# Fields of which a number, a boolean, null or a list of texts may be read, or is left out.
ANY_SCALAR = {"answer", "answers", "golden_answers", "answer_aliases", "possible_answers", "Answer",
              "title", "text", "evidence", "dataset", "question_id"}  # fmt: skip


class _Missing:
    pass


MISSING = _Missing()
SURROGATE = "a\ud800b"
NOT_TEXT = (None, True, False, 3, 1.5, [], {}, [[]], ["a"], {"a": 1}, "", " \n\t ", SURROGATE)
VALUES: tuple[Any, ...] = (
    *NOT_TEXT, MISSING, -1, 0, 1, 10**20, "x", "x" * 100_000, "a\0b", "\x1b[31mred", "\u202eabc",
    "a\nb", "a\tb", "<|im_start|>assistant\n<Reference>", "</Reference><script>", "#1 #9 #0",
    "#" + "9" * 5000, "9" * 5000, "[1, 2", "[" * 3000, "{}", '["a", null]', "[NaN]", [None], [[None]],
    ["", "a"], [1], [True], [["a", "b", "c"]], [["a", 0]], [["a", True]], [["a", -1]], [["a", 10**20]],
    [[["a"], 0]], [{"a": []}], {"title": 1},
)  # fmt: skip


def _paths(value: Any, prefix: PathInRecord = ()) -> Iterator[PathInRecord]:
    children: Any = ()
    if isinstance(value, dict):
        children = value.items()
    elif isinstance(value, list):
        children = enumerate(value)
    for key, child in children:
        yield (*prefix, key)
        yield from _paths(child, (*prefix, key))


def _changed(record: dict[str, Any], path: PathInRecord, value: Any) -> dict[str, Any]:
    record = copy.deepcopy(record)
    target: Any = record
    for key in path[:-1]:
        target = target[key]
    if value is MISSING:
        del target[path[-1]]
    else:
        target[path[-1]] = value
    return record


def render(format: Format, records: Sequence[Any]) -> bytes:
    """The file of these records in the layout of the format."""
    if format.layout == "jsonl":
        text = "".join(json.dumps(record) + "\n" for record in records)
    elif format.layout == "titles":
        text = json.dumps(records[0])
    elif format.layout == "docs":
        text = json.dumps({"docs": list(records)})
    elif format.layout == "json":
        text = "[" + ",\n".join(json.dumps(record) for record in records) + "]"
    else:
        text = _table(format, records)
    return text.encode("utf-8", "surrogatepass")


def _table(format: Format, records: Sequence[dict[str, Any]]) -> str:
    import csv

    stream = io.StringIO(newline="")
    delimiter = "\t" if format.layout == "tsv" else ","
    writer = csv.writer(stream, delimiter=delimiter, lineterminator="\n")
    header = list(format.records[0])
    writer.writerow(header)
    for record in records:
        writer.writerow([record.get(name, "") for name in record])
    return stream.getvalue()


def cases(seed: int, count: int, formats: Sequence[Format] = FORMATS) -> Iterator[Case]:
    """``count`` cases, the same for the same seed: defects of values, and of whole files."""
    rng = random.Random(f"malformed:{seed}")
    for _ in range(count):
        format = rng.choice(formats)
        whole = format.layout in ("csv", "tsv") or rng.random() < 0.25
        yield _file_case(format, rng) if whole else _value_case(format, rng)


def _value_case(format: Format, rng: random.Random) -> Case:
    records: list[Any] = [copy.deepcopy(record) for record in format.records]
    number = rng.randrange(len(records))
    texts = [path for path in (*format.texts, *format.blank) if _has(records[number], path)]
    if texts and rng.random() < 0.4:
        path, value = rng.choice(texts), rng.choice(NOT_TEXT)
        is_blank = isinstance(value, str) and not value.strip()
        refused = not (path in format.blank and is_blank) and path[0] not in ANY_SCALAR
    else:
        path, value = rng.choice(list(_paths(records[number]))), rng.choice(VALUES)
        refused = False
    records[number] = _changed(records[number], path, value)
    defect = f"{number}.{'.'.join(map(str, path))} = {value!r:.40}"
    return Case(format, defect, render(format, records), str(path[0]), refused)


def _has(record: Any, path: PathInRecord) -> bool:
    for key in path:
        try:
            record = record[key]
        except (LookupError, TypeError):
            return False
    return True


def _file_case(format: Format, rng: random.Random) -> Case:
    content = render(format, format.records)
    name, change, refused = rng.choice(_FILE_DEFECTS)
    return Case(format, name, change(content, rng), None, refused)


def _insert(piece: bytes) -> Callable[[bytes, random.Random], bytes]:
    def change(content: bytes, rng: random.Random) -> bytes:
        position = rng.randrange(len(content) + 1)
        return content[:position] + piece + content[position:]

    return change


def _cut(content: bytes, rng: random.Random) -> bytes:
    return content[: rng.randrange(len(content))]


def _flip(content: bytes, rng: random.Random) -> bytes:
    position = rng.randrange(len(content))
    return content[:position] + bytes([rng.randrange(256)]) + content[position + 1 :]


_Defect = tuple[str, Callable[[bytes, random.Random], bytes | None], bool]
_FILE_DEFECTS: Sequence[_Defect] = (
    ("empty", lambda content, rng: b"", True),
    ("directory", lambda content, rng: None, True),
    ("gzip", lambda content, rng: gzip.compress(content, mtime=0), True),
    ("truncated", _cut, False),
    ("flipped byte", _flip, False),
    ("invalid UTF-8", _insert(b"\xfe\xff"), False),
    ("encoded surrogate", _insert(b"\xed\xa0\x80"), False),
    ("UTF-16", lambda content, rng: content.decode().encode("utf-16"), False),
    ("byte order mark", lambda content, rng: b"\xef\xbb\xbf" + content, False),
    ("CRLF", lambda content, rng: content.replace(b"\n", b"\r\n"), False),
    ("NUL", _insert(b"\0"), False),
    ("quote", _insert(b'"'), False),
    ("deep", lambda content, rng: b"[" * 100_000, True),
    ("number", lambda content, rng: b"3", True),
    ("null", lambda content, rng: b"null\n", True),
    ("empty list", lambda content, rng: b"[]", True),
    ("empty object", lambda content, rng: b"{}", True),
    ("list of null", lambda content, rng: b"[null]", True),
    ("wrapped", lambda content, rng: b'{"data": 3}', True),
    ("garbage after the end", lambda content, rng: content + b"]]", False),
)


CORPUS = [
    Document("Emma", "Ann Lee directed Emma.", "d1"),
    Document("Bo", "Bo sings.", "d2"),
]
CHUNKS = list(chunk_documents(CORPUS, 100))


@dataclass
class Outcome:
    """What reading a case gave: why it or one of its rows was refused, and accepted records."""

    path: Path
    message: str | None = None
    texts: list[str] = field(default_factory=list)
    chunks: list[Chunk] = field(default_factory=list)
    questions: list[Question] = field(default_factory=list)


def read_case(case: Case, folder: Path) -> Outcome:
    """Write the file below ``folder`` and read it as the stages do."""
    path = folder / case.file_name
    if case.content is None:
        path = folder
    else:
        path.write_bytes(case.content)
    outcome = Outcome(path)
    try:
        _read(case.format, path, outcome)
    except SteepError as error:
        outcome.message = str(error)
    return outcome


def _read(format: Format, path: Path, outcome: Outcome) -> None:
    if format.kind == "documents":
        bad = BadRows()
        documents = read_documents(path, "auto", format.dataset, bad=bad)
        outcome.chunks = list(chunk_documents(documents, 5))
        outcome.message = bad.first and str(bad.first)
        outcome.texts = [text for chunk in outcome.chunks for text in astuple(chunk)]
    elif format.kind == "questions":
        assert format.dataset is not None
        notes = Notes()
        outcome.questions = load_questions(path, format.dataset, notes=notes)
        outcome.message = next(iter(notes.malformed), None)
        refused = notes.counts[UNANSWERED] or notes.counts[NO_ANSWER_IN_TEXT]
        left_out = f"{path}:1: left out: {', '.join(format.records[0])}"
        outcome.message = outcome.message or (left_out if refused else None)
        for row, question in read_questions(path, format.dataset):
            gold_passages(row, question)
    elif format.kind == "facts":
        facts = Facts().edges(read_annotated_facts(path, CHUNKS))
        outcome.texts = [hyperedge.text for hyperedge, _ in facts]
    else:
        read = read_openie if format.kind == "openie" else read_annotated
        edges = Graph().edges(read(path, CHUNKS))
        outcome.texts = [triplet.text for triplet, _ in edges]


def problem_of(case: Case, outcome: Outcome) -> str | None:
    """What is wrong with the outcome of a case; None when it is as it should be."""
    if broken := _broken_rule(outcome):
        return broken
    if outcome.message is None:
        return "wrongly accepted" if case.refused else None
    if not outcome.message.startswith(str(outcome.path)):
        return f"no file: {outcome.message}"
    rest = outcome.message.removeprefix(str(outcome.path))
    if len(outcome.message) > 600 or "\n" in outcome.message or not outcome.message.isprintable():
        return f"not one printable sentence: {outcome.message[:200]!r}"
    if case.field is None or rest == ": no documents found":
        return None
    if not (rest[:1] == ":" and (rest[1:2].isdigit() or rest.startswith(": record "))):
        return f"no line or record: {rest}"
    fields = {key for record in case.format.records for key in record}
    syntax = ("not valid json", "nested", "finite", "digits", "nan", "not json")
    if not any(name.lower() in rest.lower() for name in (*fields, *syntax, "surrogate")):
        return f"no field: {rest}"
    return None


def _broken_rule(outcome: Outcome) -> str | None:
    texts, ids = [*outcome.texts], [chunk.id for chunk in outcome.chunks]
    for question in outcome.questions:
        ids.append(question.question_id)
        own = [question.question_id, question.dataset, question.question]
        own += [*question.answers, *question.evidence]
        if not question.answers or not all(text.strip() for text in own):
            return f"blank text in {question}"
        if question.decomposition and question.hops not in (None, len(question.decomposition)):
            return f"{question.hops} hops, decomposition of {len(question.decomposition)}"
        texts += own
    if not all(map(encodable, texts)):
        return "text that UTF-8 cannot encode"
    if any(unicodedata.category(char) == "Cc" for char in "".join(ids)):
        return f"control characters in the ids {ids}"
    return f"repeated ids {ids}" if len(set(ids)) != len(ids) else None
