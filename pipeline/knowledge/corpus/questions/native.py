"""The records of seven data sets, as their authors publish them and in the shapes that all share.

Input: a `RawRecord` and the name of its data set. Output: a `Question`, or the context paragraphs.
`NATIVE` says what each data set calls its fields. Golden evidence follows TeaRAG, section 5: for
HotpotQA and 2WikiMultiHopQA the sentences of the supporting facts, each with its title, else the
triples ("head relation tail") of 2WikiMultiHopQA; for MuSiQue the supporting paragraph of each hop
with its title, or the sentence in ``support_sentence`` where the file has one (the closed world);
for NQ and PopQA ``evidence`` of NQ, else the passages that are marked as gold.

Shared shapes: ``golden_answers`` (Search-R1, FlashRAG), ``golden_context`` (PruneRAG), and for
contexts only the retrieved ``context`` of a ``query``. Exports from the Hugging Face hub are read
as well: there a list of pairs or objects may be an object of columns (``{"title": […],
"sentences": […]}``, as in ``hotpotqa/hotpot_qa``), or JSON text (as in ``xanhho/2WikiMultihopQA``).
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from hashlib import blake2b
from typing import Any

from pipeline.core.errors import InputError
from pipeline.core.records import Decomposed, HopType, Question
from pipeline.knowledge.corpus.questions.answers import distinct_answers, listed
from pipeline.knowledge.corpus.raw_records import Document, RawRecord, join_sentences, titled

# Notes of records; the names are part of reports.
MISSING_FACTS = "supporting facts that name no sentence"
NO_FACT_FOUND = "questions none of whose supporting facts names a sentence"
_HOPS_OF_ID = re.compile(r"([0-9])hop[0-9]?__")  # MuSiQue's ids: 2hop__…, 3hop1__…
_PARTS = "question_decomposition"


@dataclass(frozen=True)
class Native:
    """The names of the fields in the records of a data set.

    ``hops`` is the number of hops of every question, 0 if they differ. ``kind`` are the fields of
    the question's type. ``passages`` are the fields of the list of passages, of the text of each,
    and of the mark of gold ones, without which the list must be there.
    """

    hop: HopType
    hops: int = 0
    kind: tuple[str, ...] = ()
    passages: tuple[str, str, str] | None = None


NATIVE = {
    "musique": Native("multi", passages=("paragraphs", "paragraph_text", "")),
    "hotpotqa": Native("multi", kind=("type",)),
    "2wiki": Native("multi", kind=("type", "question_type")),
    "nq": Native("single", 1, passages=("ctxs", "text", "isgold")),
    "popqa": Native("single", 1, ("prop",), ("paragraphs", "text", "is_supporting")),
    "triviaqa": Native("single", 1),
    "bamboogle": Native("multi", 2),
}
HOP = {name: native.hop for name, native in NATIVE.items()}
HOP["2wikimultihopqa"] = "multi"  # its name in FlashRAG


@dataclass
class Golden:
    """Golden evidence, number of hops (0 if unknown), decomposition and type of a question."""

    pieces: list[str] = field(default_factory=list)
    hops: int = 0
    parts: list[Decomposed] = field(default_factory=list)
    kind: str | None = None


def native_question(row: RawRecord, dataset: str, text: str, gold: list[str]) -> Question:
    """The question of a record of a published data set, with its text and its answers.

    Raises InputError when a field is missing or malformed, and for supports that do not fit.
    """
    native, name = NATIVE[dataset], question_id(row, dataset, text)
    golden, kind = Golden(), None
    if row.find("answer_aliases") is not None:
        gold = list(dict.fromkeys(gold + distinct_answers(row, "answer_aliases")))
    if "golden_answers" not in row.value:
        golden = _golden(row, dataset, name)
        kind = golden.kind
        if native.kind and "golden_context" not in row.value:
            kind = row.optional_text(*native.kind)
    return Question(
        name,
        dataset,
        text,
        gold,
        native.hop,
        golden.pieces,
        hops=native.hops or golden.hops or None,
        type=kind,
        decomposition=golden.parts,
        split_part=row.optional_text("split_part"),
    )


def _golden(row: RawRecord, dataset: str, name: str) -> Golden:
    if "golden_context" in row.value:
        pieces = supporting(golden_context(row))
        return Golden(pieces, len(pieces))
    if dataset == "musique":
        golden, stated = decomposed(row), _HOPS_OF_ID.match(name)
        if not golden.hops or (stated and int(stated[1]) != golden.hops):
            expected = f"{stated[1]} hops, as the id says" if stated else "at least one hop"
            raise InputError(f"{_PARTS}: expected {expected}, got {golden.hops}")
        golden.kind = name.partition("__")[0] if "__" in name else None
        return golden
    if dataset == "hotpotqa" or (dataset == "2wiki" and "supporting_facts" in row.value):
        return stated_facts(row)
    if dataset == "2wiki":
        row.present("evidences", "evidence")  # one of them must be there
        triples = evidence_triples(row, "evidences", "evidence")
        return Golden([" ".join(triple) for triple in triples], len(triples))
    if dataset == "nq" and (given := row.find("evidence")) is not None:
        return Golden(row.texts(row.checked_items(given, "evidence"), "evidence"))
    return Golden(supporting(passages(row, dataset, gold=True)))


def question_id(row: RawRecord, dataset: str, question: str) -> str:
    """The record's id, prefixed with the data set when it is a number; without an id, a text
    hash."""
    name = row.identifier("id", "_id", "question_id", "questionid")
    if name is None:
        return f"{dataset}-{blake2b(question.encode(), digest_size=6).hexdigest()}"
    # Search-R1 numbers the questions of every data set as `test_0`, `test_1`, ...
    is_number = name.removeprefix("test_").removeprefix("train_").removeprefix("dev_").isdigit()
    return f"{dataset}-{name}" if is_number else name


def evidence(title: str, text: str) -> str:
    """A piece of golden evidence, "title: text" (TeaRAG, section 5)."""
    return f"{title.strip()}: {text.strip()}" if title.strip() else text.strip()


def supporting(documents: Iterable[Document]) -> list[str]:
    """Pieces of golden evidence of the documents that have text."""
    return [evidence(document.title, document.text) for document in documents if document.text]


def decomposed(row: RawRecord) -> Golden:
    """The hops of MuSiQue's ``question_decomposition``, each with its paragraph.

    A hop has the ``idx`` of one of the ``paragraphs``; in FlashRAG's metadata, which has none, it
    has the ``support_paragraph`` itself.
    """
    golden = Golden()
    numbered = _by_index(row) if "paragraphs" in row.value else None
    for part in row.objects(rows_of(row, _PARTS), _PARTS):
        if numbered is None:
            paragraph = part.find("support_paragraph")
            support = part.checked_mapping(paragraph, "support_paragraph")
        elif (found := _integer(index := part.find("paragraph_support_idx"))) in numbered:
            support = numbered[found]
        else:
            wanted = f"the idx of one of the {len(numbered)} paragraphs"
            remedy = "exclude unanswerable questions with filter: {answerable: true}"
            raise part.expected("paragraph_support_idx", wanted, index, remedy)
        title, body = support.text("title"), support.text("paragraph_text")
        golden.parts.append(Decomposed(part.text("question"), part.text("answer"), title, body))
        sentence = "support_sentence" in part.value
        golden.pieces.append(part.text("support_sentence") if sentence else evidence(title, body))
    golden.hops = len(golden.parts)
    return golden


def _by_index(row: RawRecord) -> dict[int | None, RawRecord]:
    found: dict[int | None, RawRecord] = {}
    for paragraph in row.objects(rows_of(row, "paragraphs"), "paragraphs"):
        index = _integer(given := paragraph.find("idx"))
        if index is None or index in found:
            raise paragraph.expected("idx", "a number that no other paragraph has", given)
        found[index] = paragraph
    return found


def stated_facts(row: RawRecord) -> Golden:
    """The sentences of HotpotQA's supporting facts, and the number of hops."""
    context, facts = _context(row), supporting_facts(row)
    golden = Golden()
    for title, index in facts:
        # Some published facts point past the last sentence, and the full-wiki setting may lack the
        # gold paragraph: such facts give no evidence.
        titled = [sentences for other, sentences in context if other == title]
        sentence = next((texts[index] for texts in titled if index < len(texts)), "")
        if sentence.strip():
            golden.pieces.append(evidence(title, sentence))
    if missing := len(facts) - len(golden.pieces):
        row.notes[MISSING_FACTS] += missing
        row.notes[NO_FACT_FOUND] += not golden.pieces
    golden.hops = len(evidence_triples(row, "evidences")) or len({title for title, _ in facts})
    return golden


def supporting_facts(row: RawRecord) -> list[tuple[str, int]]:
    """Title and sentence number, from 0, of every supporting fact of a record."""
    facts = []
    for number, value in enumerate(rows_of(row, "supporting_facts", "title", "sent_id")):
        name = f"supporting_facts.{number}"
        title, sentence = row.checked_items(value, name, length=2)
        index = _integer(sentence)
        if index is None or index < 0:
            raise row.expected(name, "a title and a sentence number", value)
        facts.append((row.checked_text(title, name), index))
    return facts


def evidence_triples(row: RawRecord, *names: str) -> list[list[str]]:
    """The evidence triples [head, relation, tail] of a 2WikiMultiHopQA record, or none.

    ``names`` are alternative field names.
    """
    name = row.first(*names)[0]
    triples = [] if (value := listed(row, name)) is None else row.checked_items(value, name)
    return [
        row.texts(row.checked_items(triple, f"{name}.{number}", length=3), f"{name}.{number}")
        for number, triple in enumerate(triples)
    ]


def contexts(row: RawRecord, dataset: str) -> list[Document]:
    """The context paragraphs of a record. Raises InputError for a record without any."""
    if isinstance(metadata := row.find("metadata"), dict):  # FlashRAG's data sets
        row = row.checked_mapping(metadata, "metadata")
    if "golden_context" in row.value:
        return golden_context(row)
    if "query" in row.value:
        return _retrieved(row)
    if dataset in ("hotpotqa", "2wiki"):
        return fact_contexts(row)
    if dataset in NATIVE and NATIVE[dataset].passages:
        return passages(row, dataset)
    problem = f"{dataset} records of this shape have no context paragraphs"
    raise InputError(problem + "; name a corpus of documents instead")


def passages(row: RawRecord, dataset: str, *, gold: bool = False) -> list[Document]:
    """The passages of a record, or those that are marked as ``gold``; none if it has none."""
    if (named := NATIVE[dataset].passages) is None:
        return []
    name, text, mark = named
    return [
        Document(passage.text("title"), passage.text(text))
        for passage in row.objects(
            [] if mark and name not in row.value else rows_of(row, name), name
        )
        if not gold or passage.flag(mark)
    ]


def golden_context(row: RawRecord) -> list[Document]:
    """The passages of PruneRAG's ``golden_context``, each a title, a newline and a text."""
    # Data sets without gold passages (TriviaQA, Bamboogle) have empty strings here.
    values = [item for item in row.items("golden_context") if item != ""]
    return [titled(row, row.checked_text(v, "golden_context"), "golden_context") for v in values]


def _retrieved(row: RawRecord) -> list[Document]:
    documents = []
    for number, pair in enumerate(row.items("context")):
        name, value = row.checked_items(pair, f"context.{number}", length=2)
        place = f"context.{number}.1"
        document = titled(row, row.checked_text(value, place), place)
        documents.append(replace(document, id=row.checked_identifier(name, f"context.{number}.0")))
    return documents


def fact_contexts(row: RawRecord) -> list[Document]:
    """The paragraphs of a HotpotQA or 2WikiMultiHopQA record."""
    return [
        Document(title, join_sentences(row, texts, "context")) for title, texts in _context(row)
    ]


def _context(row: RawRecord) -> list[tuple[str, list[str]]]:
    context, value = [], listed(row, "context")
    # FlashRAG calls the sentences of 2WikiMultiHopQA content.
    texts = "content" if isinstance(value, dict) and value.get("content") else "sentences"
    for number, pair in enumerate(rows_of(row, "context", "title", texts)):
        title, sentences = row.checked_items(pair, f"context.{number}", length=2)
        # Checked here so that the error names the position of a malformed sentence.
        join_sentences(row, sentences, f"context.{number}")
        context.append((row.checked_text(title, f"context.{number}"), sentences))
    return context


def rows_of(row: RawRecord, name: str, *fields: str) -> list[Any]:
    """A list field; an object of columns becomes a list of objects, or lists with ``fields``."""
    row.present(name)
    if not isinstance(value := listed(row, name), dict):
        return row.checked_items(value, name)
    part = row.checked_mapping(value, name)
    columns = {field: part.items(field) for field in fields or value}
    if len({len(column) for column in columns.values()}) > 1:
        counts = ", ".join(f"{field} has {len(column)}" for field, column in columns.items())
        raise InputError(f"{part.inside[:-1]}: expected columns of one length; {counts}")
    cells = zip(*columns.values(), strict=True)
    return [list(each) if fields else dict(zip(value, each, strict=True)) for each in cells]


def _integer(value: object) -> int | None:
    """The value if it is an integer, else None; True and 1.0 do not count as integers."""
    return value if isinstance(value, int) and not isinstance(value, bool) else None
