"""Predictions of any system on the questions of a split, measured as answers of a policy are.

Input: rows in any form of `pipeline.core.row_files` with a question's id and an answer, perhaps
with tokens and searches, and the questions. Output: a `Submission`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from pipeline.core.errors import InputError, Place
from pipeline.core.methods import DEFAULT_METHOD
from pipeline.core.records import Question, Trajectory
from pipeline.evaluation.metrics import Outcome, measure
from pipeline.knowledge.corpus.questions.answers import answer_texts
from pipeline.knowledge.corpus.questions.load import ids_of_files
from pipeline.knowledge.corpus.raw_records import RawRecord, read_rows

_ID = ("question_id", "id", "_id", "qid", "questionid")
_ANSWER = ("prediction", "pred", "predicted_answer", "model_answer", "final_answer", "answer")
_TOKENS = ("tokens", "total_tokens", "num_tokens", "n_tokens")
COSTS = ("total", "searches")
_SEARCHES = ("searches", "num_searches", "n_searches", "search_count")


@dataclass
class Submission:
    """The outcomes of the answered questions, and ids: of questions without a prediction, of
    further predictions for a question, and of none. ``costs`` names "total" and "searches" where
    every row has them."""

    outcomes: list[Outcome] = field(default_factory=list)
    costs: list[str] = field(default_factory=list)
    missing: list[str] = field(default_factory=list)
    duplicate: list[str] = field(default_factory=list)
    unknown: list[str] = field(default_factory=list)


def read_submission(path: Path | str, questions: Sequence[Question]) -> Submission:
    """Measure the predictions of a file; of several for a question the first counts.

    An id may lack the data set's name in front. A question that a file repeats takes the next
    prediction for its id, or else the first. Raises InputError with file and line for a malformed
    row, an id of several questions, and when no id is of a question.
    """
    first = ids_of_files(questions)
    named: dict[str, list[str]] = {}
    for one in questions:
        name = first[one.question_id]
        for alias in {one.question_id, name, name.removeprefix(f"{one.dataset}-")}:
            named.setdefault(alias, []).append(one.question_id)
    found, given = Submission(), dict[str, tuple[str | None, list[int | None]]]()
    answered_in = None
    for raw in read_rows(path):
        with Place(path, (row := raw.plain()).place):
            alias = row.checked_identifier(*reversed(row.present(*_ID)))
            asked = named.get(alias, [])
            if len({first[name] for name in asked}) > 1:
                raise InputError(f"{alias} is the id of {' and of '.join(asked)}; write one")
            name, _ = _predicted(row)
            if name != (answered_in := answered_in or name):  # one of them may be the gold answer
                raise InputError(
                    f"{name}: rows before have their answers in {answered_in}; write all in one "
                    "field, null where there is no answer"
                )
            predicted = _answer(row), [_count(row, *names) for names in (_TOKENS, _SEARCHES)]
        if free := next((name for name in asked if name not in given), None):
            given[free] = predicted
        else:
            (found.duplicate if asked else found.unknown).append(alias)
    for one in questions:
        if known := given.get(one.question_id) or given.get(first[one.question_id]):
            trajectory = Trajectory(
                "", one.question_id, one.dataset, one.question, one.hop, one.answers, [],
                DEFAULT_METHOD, "", answer=known[0], format_ok=True,
            )  # fmt: skip
            tokens, searches = (cost or 0 for cost in known[1])
            outcome = measure(trajectory, one.split_part)
            found.outcomes.append(replace(outcome, thinking=tokens, searches=searches))
        else:
            found.missing.append(one.question_id)
    if not given:
        raise InputError.at(path, f"no id is one of the split, such as {questions[0].question_id}")
    costs = zip(*(costs for _, costs in given.values()), strict=True)
    found.costs = [name for name in COSTS if None not in next(costs)]
    return found


def _predicted(row: RawRecord) -> tuple[str, Any]:
    """The field of the prediction, which may be null: a later one may have the gold answer."""
    names = [name for name in _ANSWER if name in row.value]
    return row.present(*names[:1] or _ANSWER)


def _answer(row: RawRecord) -> str | None:
    name, value = _predicted(row)
    if isinstance(value, bool | list | dict):
        raise row.expected(name, "a text", value, "write yes or no, and one answer")
    return value if isinstance(value, str) else next(answer_texts(value))


def _count(row: RawRecord, *names: str) -> int | None:
    name, value = row.first(*names)
    match value:
        case {"thinking": int(written), "retrieved": int(read)}:  # of a trajectory
            value = written + read
    text = str(value).removesuffix(".0")
    if isinstance(value, str | float) and text.isdecimal() and len(text) < 10:
        value = int(text)  # of a table
    if value == "" or value is None:
        return None
    if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value < 1e9:
        raise row.expected(name, "a whole number from 0", value)
    return value
