"""Check a `Question` record that steep wrote, or that a user wrote in its shape.

Input: a `RawRecord` of data set ``questions``. Output: the `Question`. The types of the fields are
checked by `core.record_io`; the rules between fields, and blank texts, are checked here.
"""

from __future__ import annotations

from collections.abc import Iterator

from pipeline.core.answer_metrics import is_average
from pipeline.core.errors import InputError
from pipeline.core.record_io import parse_record
from pipeline.core.records import Question
from pipeline.corpus.raw_records import RawRecord, brief


def question_record(row: RawRecord) -> Question:
    """The record as a `Question`.

    Raises InputError when a field has another type, a text is blank, the data set has the name of an
    average of the metrics, there is no answer, or the number of hops is below 1 or differs from the
    decomposition.
    """
    try:
        question = parse_record(Question, row.value, row.path, row.line)
    except InputError as error:
        raise row.error(str(error).removeprefix(f"{row.error('')}")) from None
    row.checked_identifier(question.question_id, "question_id")
    for field, text in _texts(question):
        row.checked_text(text, field)
    if is_average(question.dataset):
        raise row.error(
            f"dataset: expected another name, got {brief(question.dataset)}; all, single-hop, multi-hop, "
            "1-hop, 2-hop and so on are averages over data sets"
        )
    if not question.answers:
        raise row.error("answers: expected at least one answer, got []")
    _check_hops(row, question)
    return question


def _texts(question: Question) -> Iterator[tuple[str, str]]:
    yield "dataset", question.dataset
    yield "question", question.question
    for field in ("answers", "evidence"):
        for number, text in enumerate(getattr(question, field)):
            yield f"{field}.{number}", text
    for number, part in enumerate(question.decomposition):
        yield f"decomposition.{number}.question", part.question
        yield f"decomposition.{number}.answer", part.answer


def _check_hops(row: RawRecord, question: Question) -> None:
    stated, decomposed = row.find("hops"), len(question.decomposition)
    if stated is not None and (type(stated) is not int or stated < 1):
        raise row.error(f"hops: expected a number of at least 1, got {brief(stated)}")
    if decomposed and stated is not None and stated != decomposed:
        raise row.error(f"hops: expected {decomposed}, as in decomposition, got {stated}")
    if question.hop == "single" and (stated or 1) > 1:
        raise row.error(f"hop: expected multi for {stated} hops, got single")
