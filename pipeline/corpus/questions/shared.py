"""Helpers of the question parsers, and the record shapes that several data sets share.

The parsers in ``multihop`` and ``single`` build their questions here. The shared shapes come from
Search-R1 and FlashRAG (``golden_answers``) and from PruneRAG (``golden_context``; retrieved
``context`` for a ``query``). Input: a `RawRecord`. Output: a `Question` or parts of one.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from hashlib import blake2b
from typing import Any

from pipeline.core.answer_metrics import is_average
from pipeline.core.errors import InputError
from pipeline.core.record_io import parse_record
from pipeline.core.records import Decomposed, HopType, Question
from pipeline.corpus.questions.answers import answers, literal
from pipeline.corpus.raw_records import Document, RawRecord, brief, titled

# Notes of records; the names are part of reports.
MISSING_FACTS = "supporting facts that name no sentence"
NO_FACT_FOUND = "questions none of whose supporting facts names a sentence"
HOP: dict[str, HopType] = {
    "musique": "multi",
    "hotpotqa": "multi",
    "2wiki": "multi",
    "2wikimultihopqa": "multi",  # its name in FlashRAG
    "bamboogle": "multi",
    "nq": "single",
    "popqa": "single",
    "triviaqa": "single",
}
# The number of hops, for data sets in which every question has the same number.
_HOPS = {"bamboogle": 2, "nq": 1, "popqa": 1, "triviaqa": 1}


def build(
    row: RawRecord,
    dataset: str,
    text: str,
    gold: list[str],
    pieces: Sequence[str] = (),
    *,
    hops: int | None = None,
    kind: str | None = None,
    decomposition: Sequence[Decomposed] = (),
) -> Question:
    """A `Question` from the parts of a record.

    ``pieces`` are the golden evidence. ``hops`` is ignored for data sets whose questions all have
    the same number of hops; 0 means unknown. ``kind`` is the question's type.
    """
    return Question(
        question_id(row, dataset, text),
        dataset,
        text,
        gold,
        HOP[dataset],
        list(pieces),
        hops=_HOPS.get(dataset) or hops or None,
        type=kind,
        decomposition=list(decomposition),
        split_part=row.optional_text("split_part"),
    )


def question_id(row: RawRecord, dataset: str, question: str) -> str:
    """The record's id, prefixed with the data set when it is a number; without an id, a text
    hash."""
    name = row.identifier("id", "_id", "question_id", "QuestionId", "questionid")
    if name is None:
        return f"{dataset}-{blake2b(question.encode(), digest_size=6).hexdigest()}"
    # Search-R1 numbers the questions of every data set as `test_0`, `test_1`, ...
    is_number = name.removeprefix("test_").removeprefix("train_").removeprefix("dev_").isdigit()
    return f"{dataset}-{name}" if is_number else name


def listed(row: RawRecord, name: str) -> Any:
    """The value of a field; a text that prints a list or an object becomes it.

    Raises InputError when such a text has no value.
    """
    value = row.find(name)
    if not isinstance(value, str) or not value.lstrip().startswith(("[", "{")):
        return value
    try:
        return literal(value)
    except ValueError:
        raise row.error(f"{row.inside}{name}: expected a list, got {brief(value)}") from None


def evidence(title: str, text: str) -> str:
    """A piece of golden evidence, "title: text" (TeaRAG, section 5)."""
    return f"{title.strip()}: {text.strip()}" if title.strip() else text.strip()


def supporting(documents: Iterable[Document]) -> list[str]:
    """Pieces of golden evidence of the documents that have text."""
    return [evidence(document.title, document.text) for document in documents if document.text]


def question(row: RawRecord, dataset: str) -> Question | None:
    """The question of a record in a shared shape; None for a record in its native shape."""
    if "golden_answers" in row.value:
        text = row.text("question")
        gold = answers(row, row.value["golden_answers"], field="golden_answers")
        return build(row, dataset, text, gold)
    if "golden_context" in row.value:
        text = row.text("Question", "question")
        gold = answers(row, row.present("answer")[1])
        pieces = supporting(_golden(row))
        return build(row, dataset, text, gold, pieces, hops=len(pieces))
    return None


def contexts(row: RawRecord) -> list[Document] | None:
    """The paragraphs of a record in a shared shape; None for a record in its native shape."""
    if "golden_context" in row.value:
        return _golden(row)
    if "query" in row.value:
        documents = []
        for number, pair in enumerate(row.items("context")):
            name, value = row.checked_items(pair, f"context.{number}", length=2)
            field = f"context.{number}.1"
            document = titled(row, row.checked_text(value, field), field)
            name = row.checked_identifier(name, f"context.{number}.0")
            documents.append(Document(document.title, document.text, name))
        return documents
    return None


def _golden(row: RawRecord) -> list[Document]:
    # Data sets without gold passages (TriviaQA, Bamboogle) have empty strings here.
    values = [item for item in row.items("golden_context") if item != ""]
    return [titled(row, row.checked_text(v, "golden_context"), "golden_context") for v in values]


def checked_question(row: RawRecord) -> Question:
    """The record as a `Question`.

    Raises InputError when a field has another type, a text is blank, the data set has the name of
    an average of the metrics, there is no answer, or the number of hops is below 1 or differs from
    the decomposition.
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
            f"dataset: expected another name, got {brief(question.dataset)}; all, single-hop, "
            "multi-hop, 1-hop, 2-hop and so on are averages over data sets"
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
