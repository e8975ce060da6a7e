"""Questions of any origin: a question, its answers, and what else a record happens to say.

Input: a `RawRecord` with ``question`` and answers in a field of `answers.GOLD`, of a published data
set (`native`), in the form of `Question`, or of any other origin. Output: a `Question`. A record
without an id is named by a hash of its question. Without ``hop``, ``hops`` and a decomposition the
number of hops is unknown. Lists may be texts (`answers.literal`). The paragraph of SQuAD and the
golden context of PruneRAG are evidence.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from dataclasses import fields, replace
from typing import Any

from pipeline.core.answer_metrics import is_average, normalize
from pipeline.core.errors import InputError
from pipeline.core.record_io import parse_record
from pipeline.core.records import Question
from pipeline.knowledge.corpus.questions.answers import gold_answers, listed
from pipeline.knowledge.corpus.questions.native import (
    NATIVE,
    evidence,
    golden_context,
    native_question,
    question_id,
    rows_of,
    supporting,
)
from pipeline.knowledge.corpus.questions.republished import golden_fields, with_answers
from pipeline.knowledge.corpus.raw_records import RawRecord

QUESTION = ("question", "query", "problem")
_FIELDS = tuple(field.name for field in fields(Question))
_NAMES = ("dataset", "type", "split_part")
EMPTY_ANSWERS = "answers of articles and punctuation alone, beside others"


def unfolded(row: RawRecord) -> Iterator[RawRecord]:
    """The questions of a title of SQuAD, each with its paragraph; any other row as it is."""
    paragraphs = row.find("paragraphs")
    if not isinstance(paragraphs, list) or not any(
        isinstance(one, dict) and "qas" in one for one in paragraphs
    ):
        yield row
        return
    for paragraph in row.objects(paragraphs, "paragraphs"):
        about = {"title": row.find("title"), "context": paragraph.find("context")}
        for part in paragraph.objects(paragraph.items("qas"), "qas"):
            yield replace(part, value=about | part.value)


def is_unanswerable(row: RawRecord) -> bool:
    """Whether the record says that its passages do not answer it (MuSiQue-full, SQuAD 2.0)."""
    return row.find("answerable") is False or row.find("is_impossible") is True


def question_text(row: RawRecord) -> str | None:
    """The first field of `QUESTION` that has any text; None when none has."""
    for name in QUESTION:
        if _is_text(text := row.find(name)):
            row.checked_text(text, name)
            return str(text)
    return None


def evidence_texts(row: RawRecord) -> list[str]:
    """The texts in ``evidence``, without null and blank ones.

    Raises InputError when it is neither a text nor a list of texts.
    """
    value = listed(row, "evidence")
    given = value if isinstance(value, list) else [value]
    texts = [one for one in given if one is not None and one != ""]
    row.texts(texts, "evidence")  # checks them; they stay as they are
    return texts


def question_of(row: RawRecord, dataset: str) -> Question | None:
    """The record as a `Question` of a published data set, of the one that it names, or of
    ``dataset``.

    None for a record of any origin without an answer. Answers that cannot score are left out if
    another can. Raises InputError when there is no question or a field is malformed; in records of
    a published data set also without an answer, and in others when a text is blank, the data set
    has the name of an average of the metrics, or the number of hops is below 1 or differs from the
    decomposition.
    """
    row = with_answers(row.plain())
    gold, text = gold_answers(row), question_text(row)
    if text is None:
        raise InputError(f"{' or '.join(QUESTION)}: expected a text; the record has {row.fields()}")
    if not gold and dataset in NATIVE:
        raise InputError(
            f"expected an answer, such as golden_answers; the record has {row.fields()}; use a "
            "file published with answers"
        )
    if not gold:
        return None
    if dataset in NATIVE:
        question = native_question(row, dataset, text.strip(), gold)
    else:
        question = _own_question(row, dataset, text, gold)
    question = replace(question, **golden_fields(row))
    if scoring := [answer for answer in question.answers if normalize(answer)]:
        row.notes[EMPTY_ANSWERS] += len(question.answers) - len(scoring)
        question.answers = scoring
    return question


def _own_question(row: RawRecord, dataset: str, text: str, gold: list[str]) -> Question:
    values = {name: row.value[name] for name in _FIELDS if row.find(name) not in (None, "")}
    values |= {"question": text, "evidence": evidence_texts(row) or _evidence(row)}
    given = values.get("answers")
    if not (isinstance(given, list) and given and all(map(_is_text, given))):
        values["answers"] = gold
    values["decomposition"] = rows_of(row, "decomposition") if row.find("decomposition") else []
    for name in _NAMES:
        if isinstance(values.get(name), bool | int | float):
            values[name] = str(values[name])
    if "hops" not in values and values["decomposition"]:
        values["hops"] = len(values["decomposition"])
    if isinstance(values.get("hops"), str):  # of a table
        with suppress(ValueError):
            values["hops"] = float(values["hops"])  # `parse_record` takes whole ones as integers
    values.setdefault("dataset", dataset)
    if not isinstance(values.get("question_id"), str):
        values["question_id"] = question_id(row, str(values["dataset"]), text.strip())
    question = parse_record(Question, {"hop": "unknown"} | values)
    if "hop" not in values and question.hops is not None:
        question.hop = "multi" if question.hops > 1 else "single"
    _check(row, question)
    return question


def _evidence(row: RawRecord) -> list[str]:
    if "golden_context" in row.value:
        return supporting(golden_context(row))
    answers, context = row.find("answers"), row.find("context")
    started = answers[0] if isinstance(answers, list) and answers else answers
    if isinstance(started, dict) and "answer_start" in started and isinstance(context, str):
        return [evidence(row.optional_text("title") or "", context)]
    return []


def _is_text(value: Any) -> bool:
    return isinstance(value, str) and bool(value.strip())


def _check(row: RawRecord, question: Question) -> None:
    row.checked_identifier(question.question_id, "question_id")
    row.checked_text(question.dataset, "dataset")
    row.checked_text(question.question, "question")
    row.texts(question.answers, "answers")
    row.texts(question.evidence, "evidence")
    for number, part in enumerate(question.decomposition):
        row.checked_text(part.question, f"decomposition.{number}.question")
        row.checked_text(part.answer, f"decomposition.{number}.answer")
    if is_average(question.dataset):
        remedy = "all, single-hop, multi-hop, 1-hop, 2-hop and so on are averages over data sets"
        raise row.expected("dataset", "another name", question.dataset, remedy)
    stated, decomposed = question.hops, len(question.decomposition)
    if stated is not None and stated < 1:
        raise row.expected("hops", "a number of at least 1", stated)
    if stated is not None and decomposed not in (0, stated):
        raise row.expected("hops", f"{decomposed}, as in decomposition", stated)
    if question.hop == "single" and (stated or 1) > 1:
        raise row.expected("hop", f"multi for {stated} hops", "single")
