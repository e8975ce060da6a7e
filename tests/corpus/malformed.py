"""Malformed native files: a generator of cases, and the reading that each case must survive.

Input: small valid files of every native format (written here, or cut from the real data sets).
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
from dataclasses import astuple, dataclass, field, replace
from pathlib import Path
from typing import Any

from pipeline.core.errors import SteepError
from pipeline.core.records import Chunk, Question
from pipeline.corpus.chunk import chunk_documents
from pipeline.corpus.documents import read_documents
from pipeline.corpus.questions.load import load_questions, read_questions
from pipeline.corpus.questions.passages import gold_passages
from pipeline.corpus.raw_records import Document, encodable
from pipeline.graph.build import Graph
from pipeline.graph.facts import Facts
from pipeline.graph.sources import read_annotated, read_annotated_facts, read_openie

PathInRecord = tuple[str | int, ...]


@dataclass(frozen=True)
class Format:
    """One native format: valid records, and the fields that must hold text."""

    name: str
    kind: str  # documents, questions, annotated, openie or facts
    layout: str  # jsonl, json, titles, docs, csv or tsv
    records: Sequence[dict[str, Any]]
    dataset: str | None = None
    texts: Sequence[PathInRecord] = ()  # required text; any value without text must be refused
    blank: Sequence[PathInRecord] = ()  # text that may be blank; any other type must be refused


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


_PARAGRAPHS = [
    {"idx": 0, "title": "Emma", "paragraph_text": "Ann Lee directed Emma.", "is_supporting": True},
    {"idx": 1, "title": "Ann Lee", "paragraph_text": "Ann Lee was born in Rome."},
    {"idx": 2, "title": "Bo", "paragraph_text": "Bo sings in Oslo."},
]
_MUSIQUE = {
    "id": "2hop__1_2",
    "paragraphs": _PARAGRAPHS,
    "question": "Where was the director of Emma born?",
    "question_decomposition": [
        {"id": 1, "question": "Emma >> director", "answer": "Ann Lee", "paragraph_support_idx": 0},
        {"id": 2, "question": "Where was #1 born?", "answer": "Rome", "paragraph_support_idx": 1},
    ],
    "answer": "Rome",
    "answer_aliases": ["Roma"],
    "answerable": True,
}
_HOTPOTQA = {
    "_id": "5a7",
    "question": "Are Emma and Bo films?",
    "answer": "no",
    "type": "comparison",
    "level": "hard",
    "supporting_facts": [["Emma", 0], ["Bo", 1]],
    "context": [["Emma", ["Emma is a film.", " By Ann."]], ["Bo", ["Bo sings.", " In Oslo."]]],
}
_WIKI2 = {**_HOTPOTQA, "evidences": [["Emma", "director", "Ann"], ["Bo", "city", "Oslo"]]}
_DOCUMENT = {"id": "d1", "title": "Emma", "text": "Ann Lee directed Emma."}
_TRIPLE = {
    "head": "Emma",
    "relation": "has director",
    "tail": "Ann Lee",
    "title": "Emma",
    "doc_id": "d1",
    "sentence": "Ann Lee directed Emma.",
}
_QUESTION = {
    "question_id": "q1",
    "dataset": "musique",
    "question": "Where was the director of Emma born?",
    "answers": ["Rome"],
    "hop": "multi",
    "evidence": ["Emma: Ann Lee directed Emma."],
    "hops": 2,
    "decomposition": [
        {"question": "Emma >> director", "answer": "Ann Lee", "support_title": "Emma",
         "support_text": "Ann Lee directed Emma."},
        {"question": "Where was #1 born?", "answer": "Rome"},
    ],
}  # fmt: skip


def _twice(record: dict[str, Any], **changes: Any) -> list[dict[str, Any]]:
    return [record, {**copy.deepcopy(record), **changes}]


FORMATS = (
    Format("docs", "documents", "jsonl", _twice(_DOCUMENT, id="d2", title="Bo", text="Bo sings."),
           blank=[("text",), ("title",)]),
    Format("docs_list", "documents", "json", _twice(_DOCUMENT, id=2, title="Bo"),
           blank=[("text",), ("title",)]),
    Format("contents", "documents", "jsonl",
           _twice({"id": "0", "contents": '"Emma"\nA film.'}, contents="Bo\nSings."),
           texts=[("contents",)]),
    Format("titles", "documents", "titles", [{"Emma": ["A film.", " By Ann."], "Bo": ["Sings."]}],
           blank=[("Emma", 0), ("Emma", 1), ("Bo", 0)]),
    Format("psgs", "documents", "tsv", [{"id": "1", "text": "A film.", "title": "Emma"},
                                        {"id": "2", "text": '"Bo" sings.', "title": "Bo"}]),
    Format("contexts_musique", "documents", "json", [_MUSIQUE], "musique",
           [("paragraphs", 0, "title"), ("paragraphs", 2, "paragraph_text")]),
    Format("contexts_hotpotqa", "documents", "json", [_HOTPOTQA], "hotpotqa",
           [("context", 0, 0)], [("context", 0, 1, 0)]),
    Format("contexts_retrieved", "documents", "jsonl",
           [{"id": 1, "query": "Who?", "context": [["7", '"Emma"\nA film.'], ["8", "Bo\nSings."]]}],
           "bamboogle", [("context", 0, 1)]),
    Format("musique", "questions", "jsonl", _twice(_MUSIQUE, id="2hop__3_4"), "musique",
           [("question",), ("answer",), ("paragraphs", 0, "title"),
            ("paragraphs", 1, "paragraph_text"), ("question_decomposition", 0, "question"),
            ("question_decomposition", 1, "answer")], [("answer_aliases", 0)]),
    Format("hotpotqa", "questions", "json", _twice(_HOTPOTQA, _id="5a8"), "hotpotqa",
           [("question",), ("answer",), ("supporting_facts", 0, 0), ("context", 0, 0)],
           [("context", 1, 1, 0)]),
    Format("wiki2", "questions", "json", _twice(_WIKI2, _id="5a8"), "2wiki",
           [("question",), ("answer",), ("supporting_facts", 0, 0), ("evidences", 0, 2)]),
    Format("wiki2_evidence", "questions", "json",
           _twice({"id": "a", "question_type": "bridge", "question": "Who?", "answer": "Ann",
                   "evidence": [["Emma", "mother", "Ann"]]}, id="b"),
           "2wiki", [("question",), ("answer",), ("evidence", 0, 0), ("evidence", 0, 1)]),
    Format("nq", "questions", "jsonl",
           _twice({"id": 1, "question": "who made emma", "answer": ["Ann", "Ann Lee"],
                   "evidence": ["Emma: By Ann."]}, id=2),
           "nq", [("question",), ("evidence", 0)], [("answer", 0)]),
    Format("nq_passages", "questions", "jsonl",
           _twice({"question": "who made emma", "answers": ["Ann"], "ctxs": [
               {"title": "Emma", "text": "By Ann.", "isgold": True},
               {"title": "Bo", "text": "Sings.", "isgold": False}]}, question="who is bo"),
           "nq", [("question",), ("ctxs", 0, "title"), ("ctxs", 0, "text")], [("answers", 0)]),
    Format("popqa", "questions", "jsonl",
           _twice({"id": 0, "prop": "occupation", "question": "What is Bo?",
                   "possible_answers": '["singer", "poet"]',
                   "paragraphs": [{"title": "Bo", "text": "Sings.", "is_supporting": True}]}, id=1),
           "popqa", [("question",), ("possible_answers",), ("paragraphs", 0, "text")]),
    Format("popqa_table", "questions", "tsv",
           [{"id": "0", "question": "What is Bo?", "possible_answers": '["singer", "poet"]'},
            {"id": "1", "question": "What is Al?", "possible_answers": '["king"]'}], "popqa"),
    Format("triviaqa", "questions", "json",
           _twice({"QuestionId": "t1", "Question": "Who sings?",
                   "Answer": {"Value": "Bo", "Aliases": ["Bo B"]}}, QuestionId="t2"),
           "triviaqa", [("Question",), ("Answer", "Value")],
           [("Answer", "Aliases", 0)]),
    Format("bamboogle", "questions", "csv", [{"Question": "Who, then?", "Answer": "Bo"},
                                             {"Question": "When?", "Answer": "1900"}], "bamboogle"),
    Format("search_r1", "questions", "jsonl",
           _twice({"id": "test_0", "question": "who made emma?", "golden_answers": ["Ann"]},
                  id="test_1"), "nq", [("question",)], [("golden_answers", 0)]),
    Format("prunerag", "questions", "jsonl",
           _twice({"id": 0, "Question": "Who?", "answer": ["Ann"],
                   "golden_context": ["Emma\nBy Ann.", ""]}, id=4),
           "hotpotqa", [("Question",)], [("answer", 0)]),
    Format("questions", "questions", "jsonl", _twice(_QUESTION, question_id="q2"), "questions",
           [("question",), ("question_id",), ("answers", 0), ("evidence", 0), ("dataset",),
            ("decomposition", 0, "question"), ("decomposition", 1, "answer")]),
    Format("triplets", "annotated", "jsonl", _twice(_TRIPLE, tail="film"),
           texts=[("head",), ("relation",), ("tail",), ("sentence",)]),
    Format("hyperedges", "facts", "jsonl",
           _twice({"text": "Ann Lee directed Emma.", "entities": ["Ann Lee", "Emma"],
                   "doc_id": "d1"}, text="Emma is a film."),
           texts=[("text",), ("entities", 0)]),
    Format("openie", "openie", "docs",
           [{"title": "Emma", "text": "Ann Lee directed Emma.",
             "extracted_triples": [["Emma", "has director", "Ann Lee"], ["Emma", "is", "film"]]},
            {"passage": "Bo\nBo sings.", "extracted_triples": [["Bo", "sings", "songs"]]}],
           texts=[("title",), ("text",)]),
)  # fmt: skip


# Real files: format, file, and the number of records that a case holds.
_REAL = (
    ("docs_list", "musique/musique_train100_corpus1890.json", 3),
    ("titles", "hotpotqa/hotpotqa_train100_corpus994.json", 3),
    ("musique", "musique/musique_train100.json", 2),
    ("hotpotqa", "hotpotqa/hotpotqa_train100.json", 2),
    ("wiki2", "2wiki/2wiki_official100.json", 2),
    ("wiki2_evidence", "2wiki/2wiki_dev973_evidence.json", 3),
    ("nq_passages", "single-hop/nq_open_gold_1326.jsonl", 3),
    ("search_r1", "single-hop/nq_search_1802.jsonl", 3),
    ("popqa", "single-hop/popqa_gold_502.jsonl", 3),
    ("prunerag", "hotpotqa/prunerag_hotpotqa_276.jsonl", 3),
    ("contexts_retrieved", "single-hop/bamboogle_e5_top21_58.jsonl", 1),
)


def real_formats(directory: Path) -> list[Format]:
    """The formats with the first records of the real data sets below ``directory``."""
    by_name = {format.name: format for format in FORMATS}
    formats = []
    for name, file, count in _REAL:
        text = (directory / file).read_text(encoding="utf-8")
        format = by_name[name]
        records: Any
        if format.layout == "titles":
            records = [dict(list(json.loads(text).items())[:count])]
        elif file.endswith(".jsonl"):
            records = [json.loads(line) for line in text.splitlines()[:count]]
        else:
            records = json.loads(text)[:count]
        # Only the supporting paragraphs of a question are read, and the first are not among them.
        texts = [path for path in format.texts if path[0] != "paragraphs"]
        formats.append(replace(format, records=records, texts=texts))
    return formats


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
        # PopQA's answers are a list or the text of one.
        refused = not (path in format.blank and is_blank) and value != ["a"]
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
    if name.startswith("table") and format.layout not in ("csv", "tsv"):
        name, change, refused = rng.choice(_FILE_DEFECTS[:10])
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


def _cell(edit: Callable[[list[bytes]], list[bytes]]) -> Callable[[bytes, random.Random], bytes]:
    def change(content: bytes, rng: random.Random) -> bytes:
        delimiter = b"\t" if b"\t" in content else b","
        lines = content.splitlines()
        number = rng.randrange(len(lines))
        lines[number] = delimiter.join(edit(lines[number].split(delimiter)))
        return b"\n".join(lines) + b"\n"

    return change


_Defect = tuple[str, Callable[[bytes, random.Random], bytes | None], bool]
_FILE_DEFECTS: Sequence[_Defect] = (
    ("empty", lambda content, rng: b"", True),
    ("directory", lambda content, rng: None, True),
    ("gzip", lambda content, rng: gzip.compress(content, mtime=0), True),
    ("truncated", _cut, False),
    ("flipped byte", _flip, False),
    ("invalid UTF-8", _insert(b"\xff\xfe"), True),
    ("encoded surrogate", _insert(b"\xed\xa0\x80"), True),
    ("UTF-16", lambda content, rng: content.decode().encode("utf-16"), True),
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
    ("table: column added", _cell(lambda cells: [*cells, b"extra"]), True),
    ("table: column dropped", _cell(lambda cells: cells[:-1]), True),
    ("table: quote opened", _cell(lambda cells: [b'"' + cells[0], *cells[1:]]), False),
    ("table: enormous cell", _cell(lambda cells: [*cells[:-1], b"x" * 300_000]), False),
)


CORPUS = [
    Document("Emma", "Ann Lee directed Emma.", "d1"),
    Document("Bo", "Bo sings.", "d2"),
]
CHUNKS = list(chunk_documents(CORPUS, 100))


@dataclass
class Outcome:
    """What reading a case gave: the message of its refusal, or the accepted records."""

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
        outcome.chunks = list(chunk_documents(read_documents(path, "auto", format.dataset), 5))
        outcome.texts = [text for chunk in outcome.chunks for text in astuple(chunk)]
    elif format.kind == "questions":
        assert format.dataset is not None
        outcome.questions = load_questions(path, format.dataset)
        for row, question in read_questions(path, format.dataset):
            gold_passages(row, question)
    elif format.kind == "facts":
        facts = Facts().edges(read_annotated_facts(path, CHUNKS))
        outcome.texts = [fact.hyperedge.text for fact in facts]
    else:
        read = read_openie if format.kind == "openie" else read_annotated
        edges = Graph().edges(read(path, CHUNKS))
        outcome.texts = [edge.triplet.text for edge in edges]


def problem_of(case: Case, outcome: Outcome) -> str | None:
    """What is wrong with the outcome of a case; None when it is as it should be."""
    if outcome.message is None:
        return "wrongly accepted" if case.refused else _broken_rule(outcome)
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
    syntax = ("not valid JSON", "nested", "finite", "digits", "NaN", "not JSON")
    if not any(name in rest for name in (*fields, *syntax, "surrogate")):
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
