"""Parsers for native records of MuSiQue, HotpotQA and 2WikiMultiHopQA.

Input: a `RawRecord`. Output: a `Question`, or the record's context paragraphs. Golden evidence
follows TeaRAG, section 5: for HotpotQA and 2WikiMultiHopQA the sentences of the supporting facts,
each with its title; for MuSiQue the supporting paragraph of each hop with its title, or the
sentence in ``support_sentence`` where the file has one (the closed world).

Exports from the Hugging Face hub are read as well: there a list of pairs or objects may be an
object of columns (``{"title": […], "sentences": […]}``, as in ``hotpotqa/hotpot_qa``), or JSON text
(as in ``xanhho/2WikiMultihopQA``).
"""

from __future__ import annotations

import re
from typing import Any

from pipeline.core.records import Decomposed, Question
from pipeline.corpus.questions.answers import answers
from pipeline.corpus.questions.shared import (
    MISSING_FACTS,
    NO_FACT_FOUND,
    build,
    evidence,
    listed,
    question_id,
)
from pipeline.corpus.raw_records import Document, RawRecord, brief, join_sentences

_HOPS_OF_ID = re.compile(r"([0-9])hop[0-9]?__")  # MuSiQue's ids: 2hop__…, 3hop1__…


def musique(row: RawRecord) -> Question:
    """MuSiQue: ``id, paragraphs, question, question_decomposition, answer, answer_aliases``."""
    text = row.text("question")
    paragraphs: dict[int, RawRecord] = {}
    for paragraph in _paragraphs(row):
        index = _integer(paragraph.find("idx"))
        if index is None or index in paragraphs:
            problem = (
                f"expected a number that no other paragraph has, got {brief(paragraph.find('idx'))}"
            )
            raise row.error(f"{paragraph.inside}idx: {problem}")
        paragraphs[index] = paragraph
    decomposition, pieces = [], []
    for number, value in enumerate(_objects(row, "question_decomposition")):
        part = row.checked_mapping(value, f"question_decomposition.{number}")
        wanted = _integer(part.find("paragraph_support_idx"))
        support = None if wanted is None else paragraphs.get(wanted)
        if support is None:
            found = brief(part.find("paragraph_support_idx"))
            raise row.error(
                f"question_decomposition.{number}.paragraph_support_idx: expected the idx of one "
                f"of the {len(paragraphs)} paragraphs, got {found}; exclude unanswerable questions "
                "with filter: {answerable: true}"
            )
        title, body = support.text("title"), support.text("paragraph_text")
        decomposition.append(Decomposed(part.text("question"), part.text("answer"), title, body))
        sentence = "support_sentence" in part.value
        pieces.append(part.text("support_sentence") if sentence else evidence(title, body))
    gold = answers(row, row.present("answer")[1], row.optional_items("answer_aliases"))
    name = question_id(row, "musique", text)
    stated = _HOPS_OF_ID.match(name)
    if not decomposition or (stated and int(stated[1]) != len(decomposition)):
        expected = f"{stated[1]} hops, as the id says" if stated else "at least one hop"
        raise row.error(f"question_decomposition: expected {expected}, got {len(decomposition)}")
    kind, separator, _ = name.partition("__")
    return build(
        row,
        "musique",
        text,
        gold,
        pieces,
        hops=len(decomposition),
        kind=kind if separator else None,
        decomposition=decomposition,
    )


def musique_contexts(row: RawRecord) -> list[Document]:
    """The paragraphs of a MuSiQue record."""
    return [
        Document(paragraph.text("title"), paragraph.text("paragraph_text"))
        for paragraph in _paragraphs(row)
    ]


def hotpotqa(row: RawRecord) -> Question:
    """HotpotQA: ``_id, question, answer, type, level, context, supporting_facts``."""
    return _with_facts(row, "hotpotqa")


def wiki2(row: RawRecord) -> Question:
    """2WikiMultiHopQA: HotpotQA's fields and ``evidences``, or only evidence triples.

    Without supporting facts, the triples ("head relation tail") are the golden evidence.
    """
    if "supporting_facts" in row.value:
        return _with_facts(row, "2wiki")
    text = row.text("question")
    row.present("evidences", "evidence")  # one of them must be there
    triples = evidence_triples(row, "evidences", "evidence")
    pieces = [" ".join(triple) for triple in triples]
    gold, kind = answers(row, row.present("answer")[1]), row.optional_text("type", "question_type")
    return build(row, "2wiki", text, gold, pieces, hops=len(triples), kind=kind)


def evidence_triples(row: RawRecord, *names: str) -> list[list[str]]:
    """The evidence triples [head, relation, tail] of a 2WikiMultiHopQA record, or none.

    ``names`` are alternative field names.
    """
    name = row.first(*names)[0]
    value = listed(row, name)
    return [
        [
            row.checked_text(part, f"{name}.{number}")
            for part in row.checked_items(triple, f"{name}.{number}", length=3)
        ]
        for number, triple in enumerate([] if value is None else row.checked_items(value, name))
    ]


def supporting_facts(row: RawRecord) -> list[tuple[str, int]]:
    """Title and sentence number, from 0, of every supporting fact of a record."""
    facts = []
    for number, value in enumerate(_pairs(row, "supporting_facts", ("title", "sent_id"))):
        field = f"supporting_facts.{number}"
        title, sentence = row.checked_items(value, field, length=2)
        index = _integer(sentence)
        if index is None or index < 0:
            raise row.error(f"{field}: expected a title and a sentence number, got {brief(value)}")
        facts.append((row.checked_text(title, field), index))
    return facts


def hotpotqa_contexts(row: RawRecord) -> list[Document]:
    """The paragraphs of a HotpotQA or 2WikiMultiHopQA record."""
    return [
        Document(title, join_sentences(row, sentences, "context"))
        for title, sentences in _context(row)
    ]


def fact_evidence(row: RawRecord) -> tuple[list[str], int]:
    """The sentences of the supporting facts, each with its title, and the number of hops."""
    context = _context(row)
    facts = supporting_facts(row)
    pieces = []
    for title, index in facts:
        # Some published facts point past the last sentence, and the full-wiki setting may lack the
        # gold paragraph: such facts give no evidence.
        titled = [sentences for other, sentences in context if other == title]
        sentence = next((texts[index] for texts in titled if index < len(texts)), "")
        if sentence.strip():
            pieces.append(evidence(title, sentence))
    if len(pieces) < len(facts):
        row.notes[MISSING_FACTS] += len(facts) - len(pieces)
        row.notes[NO_FACT_FOUND] += not pieces
    return pieces, len(evidence_triples(row, "evidences")) or len({title for title, _ in facts})


def _with_facts(row: RawRecord, dataset: str) -> Question:
    text = row.text("question")
    pieces, hops = fact_evidence(row)
    gold = answers(row, row.present("answer")[1], row.optional_items("answer_aliases"))
    kind = row.optional_text("type")
    return build(row, dataset, text, gold, pieces, hops=hops, kind=kind)


def _paragraphs(row: RawRecord) -> list[RawRecord]:
    values = _objects(row, "paragraphs")
    return [row.checked_mapping(value, f"paragraphs.{n}") for n, value in enumerate(values)]


def _objects(row: RawRecord, name: str) -> list[Any]:
    """A list field; an object of columns becomes a list of objects."""
    row.present(name)
    value = listed(row, name)
    if isinstance(value, dict):
        columns = _columns(row.checked_mapping(value, name), *value)
        return [dict(zip(value, cells, strict=True)) for cells in columns]
    return row.checked_items(value, name)


def _pairs(row: RawRecord, name: str, fields: tuple[str, str]) -> list[Any]:
    """A list field; an object with the columns ``fields`` becomes a list of their pairs."""
    row.present(name)
    value = listed(row, name)
    if isinstance(value, dict):
        return _columns(row.checked_mapping(value, name), *fields)
    return row.checked_items(value, name)


def _columns(part: RawRecord, *fields: str) -> list[list[Any]]:
    """The rows of an object of columns. Raises InputError unless they are equally long lists."""
    columns = [part.items(field) for field in fields]
    lengths = {len(column) for column in columns}
    if len(lengths) > 1:
        counts = ", ".join(
            f"{field} has {len(column)}" for field, column in zip(fields, columns, strict=True)
        )
        field = part.inside.removesuffix(".")
        raise part.error(f"{field}: expected columns of one length; {counts}")
    return [list(cells) for cells in zip(*columns, strict=True)]


def _integer(value: object) -> int | None:
    """The value if it is an integer, else None; True and 1.0 do not count as integers."""
    return value if isinstance(value, int) and not isinstance(value, bool) else None


def _context(row: RawRecord) -> list[tuple[str, list[str]]]:
    context = []
    value = listed(row, "context")
    # FlashRAG calls the sentences of 2WikiMultiHopQA content.
    texts = "content" if isinstance(value, dict) and value.get("content") else "sentences"
    for number, value in enumerate(_pairs(row, "context", ("title", texts))):
        field = f"context.{number}"
        title, sentences = row.checked_items(value, field, length=2)
        # Checked here so that the error names the position of a malformed sentence.
        join_sentences(row, sentences, field)
        context.append((row.checked_text(title, field), sentences))
    return context
