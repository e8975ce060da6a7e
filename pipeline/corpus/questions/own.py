"""Questions of any origin: a question, its answers, and what else a record happens to say.

Input: a `RawRecord` with ``question`` and one of ``answers``, ``answer`` and ``golden_answers``, or
a record in the form of `Question`. Output: a `Question`. A record without an id is named by a hash
of its question. Without ``hop``, ``hops`` and a decomposition the number of hops is unknown. Cells
of tables may hold lists as JSON.
"""

from __future__ import annotations

import dataclasses
from typing import Any

from pipeline.core.input_files import parse_json
from pipeline.core.records import HopType, Question
from pipeline.corpus.questions.shared import answers, checked_question, question_id
from pipeline.corpus.raw_records import RawRecord

ANSWERS = ("answers", "answer", "golden_answers")
_LISTS = (*ANSWERS, "evidence", "decomposition")
_FIELDS = tuple(field.name for field in dataclasses.fields(Question))


def has_answer(row: RawRecord) -> bool:
    """Whether a field of answers has any text."""
    given = (row.value[name] for name in ANSWERS if name in row.value)
    return any(value not in (None, "", []) for value in given)


def own_question(row: RawRecord, dataset: str) -> Question:
    """The record as a `Question` of the data set that it names, or of ``dataset``.

    Raises InputError when there is no question or no answer, and as `checked_question` does.
    """
    table = row.path.suffix in (".csv", ".tsv", ".parquet")  # which have blank cells
    given = {
        name: _value(row, name)
        for name, value in row.value.items()
        if not table or value not in (None, "")
    }
    values: dict[str, Any] = {name: given[name] for name in _FIELDS if name in given}
    text = row.text("question")
    field, gold = row.first(*ANSWERS)
    gold = given.get(field, gold)
    if field not in row.value:
        row.present(*ANSWERS)
    if field != "answers":
        values["answers"] = answers(row, gold, field=field)
    elif isinstance(gold, str):
        values["answers"] = [gold]
    if isinstance(values.get("evidence"), str):
        values["evidence"] = [values["evidence"]]
    if "hops" not in values and values.get("decomposition"):
        values["hops"] = len(values["decomposition"])
    values.setdefault("dataset", dataset)
    values.setdefault("question_id", question_id(row, str(values["dataset"]), text))
    values.setdefault("hop", _hop(values.get("hops")))
    return checked_question(RawRecord(values, row.path, row.number, row.line, notes=row.notes))


def _value(row: RawRecord, name: str) -> Any:
    """A field; of a table, whose cells are text, a list in JSON or a number of hops."""
    value = row.value[name]
    if isinstance(value, str) and name in _LISTS and value.lstrip().startswith("["):
        return parse_json(value, row.path, row.line)
    if isinstance(value, str) and name == "hops" and value.strip().isdecimal():
        return int(value)
    return value


def _hop(hops: Any) -> HopType:
    if not isinstance(hops, int):
        return "unknown"
    return "multi" if hops > 1 else "single"
