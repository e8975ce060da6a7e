"""Parsers for native records of NQ-open, PopQA, TriviaQA and Bamboogle.

Input: a `RawRecord`. Output: a `Question`, or the record's passages. NQ-open and PopQA records may
have gold passages, which become golden evidence; the other two data sets have none.
"""

from __future__ import annotations

from typing import Any

from pipeline.core.records import Question
from pipeline.corpus.questions.answers import answers
from pipeline.corpus.questions.shared import build, listed, supporting
from pipeline.corpus.raw_records import Document, RawRecord


def nq(row: RawRecord) -> Question:
    """NQ-open: ``question``, ``answer`` or ``answers``, and optional passages ``ctxs``.

    The golden evidence is ``evidence`` (a list of strings) if the record has it, else the passages
    marked ``isgold``.
    """
    text = row.text("question")
    value = row.find("evidence")
    pieces = (
        [row.checked_text(piece, "evidence") for piece in row.checked_items(value, "evidence")]
        if value is not None
        else supporting(nq_contexts(row, gold=True))
    )
    field, value = row.present("answer", "answers")
    gold = answers(row, value, field=field)
    return build(row, "nq", text, gold, pieces)


def nq_contexts(row: RawRecord, gold: bool = False) -> list[Document]:
    """The passages (``ctxs``) of an NQ-open record; with ``gold`` only those marked ``isgold``."""
    documents = []
    for number, value in enumerate(row.optional_items("ctxs")):
        passage = row.checked_mapping(value, f"ctxs.{number}")
        if passage.flag("isgold") or not gold:
            documents.append(Document(passage.text("title"), passage.text("text")))
    return documents


def popqa(row: RawRecord) -> Question:
    """PopQA: ``question``, ``possible_answers`` (JSON text, as in its TSV) and ``prop``."""
    text = row.text("question")
    gold = answers(row, _items(row, "possible_answers"), field="possible_answers")
    pieces = supporting(popqa_contexts(row, gold=True))
    return build(row, "popqa", text, gold, pieces, kind=row.optional_text("prop"))


def popqa_contexts(row: RawRecord, gold: bool = False) -> list[Document]:
    """The paragraphs that some editions of PopQA have; with ``gold`` only the supporting ones."""
    if "paragraphs" not in row.value:
        return []
    documents = []
    for number, value in enumerate(_items(row, "paragraphs")):
        paragraph = row.checked_mapping(value, f"paragraphs.{number}")
        if paragraph.flag("is_supporting") or not gold:
            documents.append(Document(paragraph.text("title"), paragraph.text("text")))
    return documents


def triviaqa(row: RawRecord) -> Question:
    """TriviaQA: ``Question`` and ``Answer`` with ``Value`` and ``Aliases``."""
    text = row.text("Question", "question")
    field, answer = row.present("Answer", "answer")
    return build(row, "triviaqa", text, answers(row, answer, field=field))


def bamboogle(row: RawRecord) -> Question:
    """Bamboogle (a CSV file): ``Question`` and ``Answer``; every question has two hops."""
    text = row.text("Question", "question")
    field, answer = row.present("Answer", "answer")
    return build(row, "bamboogle", text, answers(row, answer, field=field))


def _items(row: RawRecord, field: str) -> list[Any]:
    """A list, or the text of one: the tables of PopQA have JSON or Python's lists."""
    row.present(field)
    return row.checked_items(listed(row, field), field)
