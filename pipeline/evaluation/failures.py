"""Failure mode of one evaluated trajectory, from its record and the gold annotations.

Input: a parsed trajectory and, if available, its `Question`. Output: a `Diagnosis`. Every
trajectory gets exactly one failure mode, the first in this list that applies:

- right: exact match is 1.
- retrieval_error: a retrieval call failed and ended the trajectory.
- unfinished: there is no answer, because the budget of steps or tokens ran out.
- malformed: there is no answer for any other reason; the output violates the grammar.
- inexact: the words of the answer are a subset or a superset of the words of a gold answer other
  than yes and no.
- stopped_early: the trajectory has fewer steps than hops (ProGraph-R1's answer turn does not count
  as a step), and one of these holds: the answer equals the answer of an earlier hop; the first
  failed hop was neither retrieved nor queried; no hop failed and the last hop cannot be checked.
- not_asked: there are at least as many steps as hops, but the first failed hop was neither
  retrieved nor queried.
- not_retrieved: the first failed hop was queried, but no retrieved item states it.
- misread: the first failed hop was retrieved, but its answer is nowhere in the model's text; or no
  hop failed and the answer is still wrong.
- other: there are at least as many steps as hops, no hop failed, and the last hop cannot be
  checked.

`gold_hops` derives the hops and matches names. Three terms describe a hop (see
`GoldHop`):

- *retrieved*: an item (title and text) contains one of ``answers`` and, where ``subjects`` are
  known, one of those. For a hop without ``answers``, every statement must be in some item, either
  literally or as the subject together with every name and number of the statement.
- *queried*: the query or the key entities of a step contain one of ``query_names``. Where these are
  unknown, hop n counts as queried if the trajectory has at least n steps, so a bad query is counted
  as not_retrieved.
- *failed*: none of ``answers`` is in the text that the model wrote (queries, entities, summaries,
  answer). A hop with statements only fails if it was not retrieved. A hop without annotations never
  fails.

The first failed hop decides, because an error in one hop causes errors in the next: a misread
document leads to a wrong query, and a wrong query to a wrong document. Two limits: a hop known by
its sentences only (comparison questions) counts as read once it is retrieved, and names are matched
as the gold annotations spell them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum
from functools import lru_cache

from pipeline.core.answer_metrics import exact_match, normalize
from pipeline.core.records import Question, Step, Trajectory
from pipeline.evaluation.gold_hops import GoldHop, SearchableText, distinctive_words, gold_hops


class FailureMode(str, Enum):
    """Failure modes in order of precedence; ``RIGHT`` is the absence of a failure."""

    RIGHT = "right"
    RETRIEVAL_ERROR = "retrieval_error"
    UNFINISHED = "unfinished"
    MALFORMED = "malformed"
    INEXACT = "inexact"
    STOPPED_EARLY = "stopped_early"
    NOT_ASKED = "not_asked"
    NOT_RETRIEVED = "not_retrieved"
    MISREAD = "misread"
    OTHER = "other"


LEGEND = {
    FailureMode.RIGHT: "The answer equals a gold answer.",
    FailureMode.RETRIEVAL_ERROR: "A retrieval call failed and ended the trajectory.",
    FailureMode.UNFINISHED: "No answer: the budget of steps or tokens ran out.",
    FailureMode.MALFORMED: "No answer: the output violates the grammar.",
    FailureMode.INEXACT: "The answer has the words of a gold answer plus others, "
    "or only some of them.",
    FailureMode.STOPPED_EARLY: "The model answered in fewer steps than hops, "
    "before it queried a needed hop.",
    FailureMode.NOT_ASKED: "There were enough steps, but none queried a needed hop.",
    FailureMode.NOT_RETRIEVED: "A needed hop was queried, but no retrieved item states it.",
    FailureMode.MISREAD: "The needed facts were retrieved, but the model wrote something else.",
    FailureMode.OTHER: "The answer is wrong, and the gold annotations do not show why.",
}


@dataclass(frozen=True, slots=True)
class Diagnosis:
    """Failure mode of a trajectory; ``hop`` is the failed hop of ``hops``, from 1, or None."""

    failure_mode: FailureMode
    hop: int | None
    hops: int


def diagnose(trajectory: Trajectory, question: Question | None = None) -> Diagnosis:
    """Assign the failure mode of a trajectory by the definitions of this module.

    Without ``question``, the gold answers and evidence of the trajectory's record are used.
    """
    hops = gold_hops(trajectory, question)
    failure_mode, hop = mode_of_answer(trajectory), None
    if failure_mode is None:
        failure_mode, hop = _by_hops(trajectory, hops)
    return Diagnosis(failure_mode, hop, len(hops))


def mode_of_answer(trajectory: Trajectory) -> FailureMode | None:
    """The failure mode that answer and stop reason determine; None when the hops decide."""
    answer = trajectory.answer or ""
    if exact_match(trajectory.answer, trajectory.answers):
        return FailureMode.RIGHT
    if trajectory.stop == "retrieval_error":
        return FailureMode.RETRIEVAL_ERROR
    if not normalize(answer):
        out_of_budget = trajectory.stop in ("max_steps", "max_tokens")
        return FailureMode.UNFINISHED if out_of_budget else FailureMode.MALFORMED
    return FailureMode.INEXACT if _inexact(answer, trajectory.answers) else None


def _inexact(answer: str, golds: Sequence[str]) -> bool:
    answer_words = set(normalize(answer).split())
    gold_words = [
        set(gold.split()) for gold in map(normalize, golds) if gold not in ("", "yes", "no")
    ]
    return any(answer_words <= words or words <= answer_words for words in gold_words)


def _by_hops(trajectory: Trajectory, hops: Sequence[GoldHop]) -> tuple[FailureMode, int | None]:
    """The failure mode of a wrong answer, and the number of the failed hop, if any."""
    # The text of ProGraph-R1's answer turn belongs to the step before it.
    steps = sum(not step.answers_only for step in trajectory.steps)
    too_few_steps = steps < len(hops)
    for number, hop in enumerate(hops[:-1], start=1):
        if too_few_steps and exact_match(trajectory.answer, hop.answers):
            return FailureMode.STOPPED_EARLY, number + 1
    items = _items(trajectory)
    queries = SearchableText(*(text for step in trajectory.steps for text in _query_texts(step)))
    written = SearchableText(
        trajectory.answer or "",
        *(text for step in trajectory.steps for text in _model_texts(step)),
    )
    for number, hop in enumerate(hops, start=1):
        if hop.answers and written.contains_any(hop.answers):
            continue
        if _retrieved(hop, items):
            if not hop.answers:
                continue
            return FailureMode.MISREAD, number
        if queries.contains_any(hop.query_names) if hop.query_names else number <= steps:
            return FailureMode.NOT_RETRIEVED, number
        return (FailureMode.STOPPED_EARLY if too_few_steps else FailureMode.NOT_ASKED), number
    if hops[-1].checkable:
        return FailureMode.MISREAD, None
    return (FailureMode.STOPPED_EARLY if too_few_steps else FailureMode.OTHER), None


def _retrieved(hop: GoldHop, items: Sequence[SearchableText]) -> bool:
    on_subject = [item for item in items if not hop.subjects or item.contains_any(hop.subjects)]
    if hop.answers:
        return any(item.contains_any(hop.answers) for item in on_subject)
    return all(_stated(statement, hop, items, on_subject) for statement in hop.statements)


def _stated(
    statement: str,
    hop: GoldHop,
    items: Sequence[SearchableText],
    on_subject: Sequence[SearchableText],
) -> bool:
    words = distinctive_words(statement, " ".join(hop.subjects))
    return any(item.contains(statement) for item in items) or (
        bool(words) and any(all(item.contains(word) for word in words) for item in on_subject)
    )


def retrieved_hops(trajectory: Trajectory, question: Question | None = None) -> list[bool | None]:
    """Whether some step retrieved each gold hop (*retrieved* above), by hop.

    None for a hop without annotations, which cannot be checked.
    """
    items = _items(trajectory)
    return [
        _retrieved(hop, items) if hop.checkable else None for hop in gold_hops(trajectory, question)
    ]


def _items(trajectory: Trajectory) -> list[SearchableText]:
    """The distinct retrieved items of a trajectory."""
    texts = {(item.title, item.text): None for step in trajectory.steps for item in step.context}
    return [_item(*text) for text in texts]


_item = lru_cache(maxsize=1024)(SearchableText)  # samples of one question retrieve the same items


def _query_texts(step: Step) -> list[str]:
    return [*step.entities, step.subquery, step.search or "", step.query or ""]


def _model_texts(step: Step) -> list[str]:
    return [*_query_texts(step), step.summary, step.conclusion, step.reasoning, step.think]
