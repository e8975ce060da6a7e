"""AUC and calibration of rewards against the truth of the closed world.

Input: scored trajectories, and the `Truth` of their world. Output: one row for each reward, truth
and group of questions. A step has the rewards of its trajectory and its own, which are named
``step.TERM``; the outcome of its trajectory is the baseline. A reward has no unit, so it is scaled
from its least to its greatest value before it is read as a probability: the calibration error is
the mean distance between this value and the share of right items in ten bins of equal size
(expected calibration error).
"""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from pipeline.closed_world.truth import Truth
from pipeline.core.answer_metrics import f1
from pipeline.core.records import Trajectory
from pipeline.evaluation.comparison_tables import Table
from pipeline.evaluation.gold_likelihood import LIKELIHOOD
from pipeline.evaluation.information_gain import INFORMATION_GAIN
from pipeline.evaluation.term_counts import Estimate, TermCounts

OUTCOME = "em"
TITLES = {
    OUTCOME: "Outcome: EM",
    "f1": "Outcome: F1",
    LIKELIHOOD: "Likelihood of the gold answer",
    f"step.{LIKELIHOOD}": "Added likelihood (IGPO), step",
    f"step.{INFORMATION_GAIN}": "Information gain (IG-Search), step",
    "step.over": "No over-search, step",
    "step.under": "No under-search, step",
}
TRUTHS = {
    "step": {
        "subquery": "the subquery asks for a fact of the question's path",
        "retrieval": "a retrieved item states the fact that the subquery asks for",
        "conclusion": "the conclusion gives the value of this fact",
        "right": "subquery, retrieval and conclusion are right",
    },
    "trajectory": {
        "right": "every step is right",
        "supported": "the answer is right, and every fact of the path was found",
    },
}
_RIGHT = {"no": 1.0, "yes": 0.0}  # verdicts say whether a step is an error

Item = tuple[dict[str, float], dict[str, bool | None]]  # rewards, truths
# By level: the number of hops and the items of every question.
Audited = dict[str, list[tuple[int, list[Item]]]]


@dataclasses.dataclass(frozen=True)
class AuditRow:
    """One reward against one truth; ``hops`` is None for all questions.

    ``auc`` compares all items, ``within`` items of one question. ``gain`` and ``within_gain`` are
    their differences from the outcome's AUC on the same items. A reward that has the same value
    everywhere has no AUC: None.
    """

    level: str
    truth: str
    hops: int | None
    reward: str
    n: int
    right: int
    questions: int  # with right and with wrong items
    auc: Estimate | None
    within: Estimate | None
    gain: Estimate | None
    within_gain: Estimate | None
    calibration_error: float | None

    def as_json(self) -> dict[str, Any]:
        """The fields as JSON values, estimates with their 95 % intervals."""
        return {
            name: {"value": value.value, "interval": value.interval()}
            if isinstance(value, Estimate)
            else value
            for name, value in vars(self).items()
        }


def audited(scored: Iterable[tuple[Trajectory, Mapping[str, Any]]], truth: Truth) -> Audited:
    """The rewards and truths of trajectories, each given with its rewards, and of their steps.

    Every number among the rewards is one, and every number of ``steps``. So are the verdicts on
    over- and under-search, each kind by itself; other texts are none. Raises InputError for a
    question of another world.
    """
    questions: dict[str, dict[str, list[Item]]] = {}
    for trajectory, rewards in scored:
        found = truth.of_trajectory(trajectory)
        items = questions.setdefault(trajectory.question_id, {level: [] for level in TRUTHS})
        outcome = {OUTCOME: float(found.answer), "f1": f1(trajectory.answer, trajectory.answers)}
        own = {**outcome, **_numbers(rewards)}
        items["trajectory"].append((own, {"right": found.right, "supported": found.supported}))
        # A turn of a conversation has one reward and may have several searches.
        number = 0 if trajectory.messages else len(found.steps)
        of_steps = (rewards.get("steps") or [])[:number]
        for step, terms in itertools.zip_longest(found.steps, of_steps):
            terms = terms or {}
            if "kind" in terms and "verdict" in terms:
                terms = {**terms, str(terms["kind"]): _RIGHT.get(str(terms["verdict"]))}
            values = {f"step.{term}": value for term, value in _numbers(terms).items()}
            items["step"].append(
                (own | values, {part: getattr(step, part) for part in TRUTHS["step"]})
            )
    return {
        level: [(len(truth.path(name)), items[level]) for name, items in questions.items()]
        for level in TRUTHS
    }


def _numbers(terms: Mapping[str, Any]) -> dict[str, float]:
    return {name: float(v) for name, v in terms.items() if isinstance(v, int | float)}


def audit(items: Audited) -> list[AuditRow]:
    """The rows of all questions, and of the questions of each number of hops."""
    rows = []
    for level, questions in items.items():
        names = dict.fromkeys(name for _, of in questions for values, _ in of for name in values)
        groups = [None, *sorted({hops for hops, _ in questions})]
        for truth, hops, name in itertools.product(TRUTHS[level], groups, names):
            chosen = [of for number, of in questions if hops in (None, number)]
            rows.append(_row(level, truth, hops, name, chosen))
    return [row for row in rows if row.n]


def _row(
    level: str, truth: str, hops: int | None, reward: str, questions: Sequence[Sequence[Item]]
) -> AuditRow:
    known = [
        [item for item in items if reward in item[0] and item[1][truth] is not None]
        for items in questions
    ]
    counts, auc, within = _measured(known, reward, truth)
    _, base, base_within = _measured(known, OUTCOME, truth)
    compared = reward != OUTCOME
    return AuditRow(
        level, truth, hops, reward, counts.total, counts.number(True), counts.within.questions,
        auc, within,
        gain=auc - base if compared and auc and base else None,
        within_gain=within - base_within if compared and within and base_within else None,
        calibration_error=counts.calibration_error(),
    )  # fmt: skip


def _measured(
    questions: Sequence[Sequence[Item]], reward: str, truth: str
) -> tuple[TermCounts, Estimate | None, Estimate | None]:
    """Counts, and AUC over all items and within questions; None for a single value."""
    judged = [[(values[reward], bool(is_[truth])) for values, is_ in items] for items in questions]
    counts = TermCounts()
    for of_question in judged:
        counts.add_question(of_question)
    if not counts.varies:
        return counts, None, None
    return counts, counts.estimate(judged), counts.within.auc()


def tables(rows: Sequence[AuditRow], titles: Mapping[str, str]) -> list[Table]:
    """A table for each truth; ``titles`` name the rewards, by term.

    It is empty where everything is right or everything wrong.
    """
    names = {**TITLES, **titles}
    result = []
    by_truth = itertools.groupby(rows, key=lambda row: (row.level, row.truth))
    for (level, truth), group in by_truth:
        by_hops = {(row.hops, row.reward): row for row in group}
        of_all = [row for (hops, _), row in by_hops.items() if hops is None]
        numbers = dict.fromkeys(hops for hops, _ in by_hops if hops is not None)
        lines = [
            [
                names.get(row.reward, row.reward), _text(row.auc), _text(row.within),
                _text(row.gain, "+"), _text(row.within_gain, "+"),
                "–" if row.calibration_error is None else f"{row.calibration_error:.2f}",
                *(_text(by_hops[key].auc if (key := (n, row.reward)) in by_hops else None)
                  .partition(" ")[0] for n in numbers),
            ]
            for row in of_all
        ]  # fmt: skip
        most = max(of_all, key=lambda row: row.n)
        result.append(
            Table(
                f"{level.capitalize()}: {TRUTHS[level][truth]}",
                ["reward", "AUC", "within a question", "minus EM", "minus EM, within", "error"]
                + [f"{number} hop{'s' * (number > 1)}" for number in numbers],
                lines if 0 < most.right < most.n else [],
                f"{most.right:,} of {most.n:,} are right; {most.questions:,} questions have both",
            )
        )
    return result


def _text(estimate: Estimate | None, sign: str = "") -> str:
    """The value and its interval to two decimals."""
    if estimate is None:
        return "–"
    bounds = estimate.interval()
    shown = f" [{bounds[0]:{sign}.2f}, {bounds[1]:{sign}.2f}]" if bounds else ""
    return f"{estimate.value:{sign}.2f}{shown}"
