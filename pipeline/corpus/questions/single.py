"""Parsers for native records of NQ-open, PopQA, TriviaQA and Bamboogle.

Input: a `RawRecord`. Output: a `Question`, or the record's passages. NQ-open and PopQA records may
have gold passages, which become golden evidence; the other two data sets have none.
"""

from __future__ import annotations

import ast
import json
import warnings
from typing import Any

from pipeline.core.errors import InputError
from pipeline.core.input_files import parse_json
from pipeline.core.records import Question
from pipeline.corpus.questions.shared import answers, build, supporting
from pipeline.corpus.raw_records import Document, RawRecord, brief, encodable


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
    gold = answers(row, _literal(row, "possible_answers"), field="possible_answers")
    pieces = supporting(popqa_contexts(row, gold=True))
    return build(row, "popqa", text, gold, pieces, kind=row.optional_text("prop"))


def popqa_contexts(row: RawRecord, gold: bool = False) -> list[Document]:
    """The paragraphs that some editions of PopQA have; with ``gold`` only the supporting ones."""
    if "paragraphs" not in row.value:
        return []
    documents = []
    for number, value in enumerate(_literal(row, "paragraphs")):
        paragraph = row.checked_mapping(value, f"paragraphs.{number}")
        if paragraph.flag("is_supporting") or not gold:
            documents.append(Document(paragraph.text("title"), paragraph.text("text")))
    return documents


def triviaqa(row: RawRecord) -> Question:
    """TriviaQA: ``Question`` and ``Answer`` with ``Value`` and ``Aliases``."""
    text = row.text("Question", "question")
    field, answer = row.present("Answer", "answer")
    if isinstance(answer, dict):
        part = row.checked_mapping(answer, field)
        aliases = part.optional_items("Aliases", "aliases")
        gold = answers(part, part.text("Value", "value"), aliases, field="Aliases")
    else:
        gold = answers(row, answer, field=field)
    return build(row, "triviaqa", text, gold)


def bamboogle(row: RawRecord) -> Question:
    """Bamboogle (a CSV file): ``Question`` and ``Answer``; every question has two hops."""
    text = row.text("Question", "question")
    field, answer = row.present("Answer", "answer")
    return build(row, "bamboogle", text, answers(row, answer, field=field))


def _literal(row: RawRecord, field: str) -> list[Any]:
    """A list field that is a list, JSON text or a Python literal."""
    value = row.find(field)
    if isinstance(value, str):
        try:
            value = parse_json(value, row.path, row.line)
        except InputError:
            value = _python_literal(row, field, value)
    return row.checked_items(value, field)


def _python_literal(row: RawRecord, field: str, text: str) -> Any:
    """The value of a literal as JSON, which has no sets, bytes or complex numbers."""
    try:
        with warnings.catch_warnings(action="ignore", category=SyntaxWarning):
            value = ast.literal_eval(text)
        value = parse_json(json.dumps(value, allow_nan=False), row.path, row.line)
    except (ValueError, TypeError, SyntaxError, RecursionError, MemoryError):
        value = None
    if value is None or not encodable(value):
        raise row.error(f"{field}: expected a list, got {brief(text)}")
    return value
