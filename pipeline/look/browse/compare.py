"""Compare two rounds or policies of one run or of two: questions won and lost, pairs changed.

Input: two groups of trajectories. Output: for every question that both have, the share of right
answers (exact match) on both sides, and the change of its pairs. A question is won when the second
side answers a larger share of its samples right.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, NamedTuple

from pipeline.core.errors import InputError
from pipeline.look.browse.filters import PAGE_SIZE, Filters, page_number
from pipeline.look.browse.queries import Listing
from pipeline.look.browse.rendering import FAILURE_MEANINGS
from pipeline.look.browse.site import OpenRun
from pipeline.look.browse.sources import Group

_OUTCOMES: Mapping[str, str] = {
    "won": "a larger share of right answers on the second side",
    "lost": "a smaller share of right answers on the second side",
    "same": "an equal share of right answers",
}
_CHANGES: Mapping[str, str] = {
    "new": "only the second side has pairs of the question",
    "gone": "only the first side has pairs of the question",
    "changed": "both sides have pairs of the question, and not of the same trajectories",
    "kept": "both sides have the same pairs",
    "none": "no side has a pair of the question",
}
_FILTERS = {"outcome": _OUTCOMES, "pairs": _CHANGES, "failure": FAILURE_MEANINGS}


@dataclass(frozen=True)
class Side:
    """One side of the comparison."""

    run: OpenRun
    group: Group


class Samples(NamedTuple):
    """The samples of a question on one side, ``right`` of them with a right answer.

    ``pairs`` are the kinds of its pairs, and ``trajectories`` a hash of their trajectories in any
    order; None without pairs.
    """

    dataset: str
    right: int
    number: int
    failures: Sequence[str]
    pairs: str | None
    trajectories: int | None


class Compared(NamedTuple):
    """One question on both sides."""

    question_id: str
    question: str
    sides: tuple[Samples, Samples]

    @property
    def outcome(self) -> str:
        """Whether the question was won or lost."""
        a, b = self.sides
        difference = b.right * a.number - a.right * b.number  # of the shares of right answers
        return "won" if difference > 0 else "lost" if difference < 0 else "same"

    @property
    def change(self) -> str:
        """The change of its pairs."""
        old, new = ((side.pairs, side.trajectories) for side in self.sides)
        if old[0] and new[0]:
            return "kept" if old == new else "changed"
        return "gone" if old[0] else "new" if new[0] else "none"

    def values(self, name: str) -> Sequence[str]:
        """The values of a filter that keep the question.

        They are the failure modes of the worse side, or of the second if both are equal.
        """
        if name == "failure":
            return self.sides[self.outcome != "won"].failures
        return [self.outcome if name == "outcome" else self.change]


@lru_cache(maxsize=4)  # each filter of the page needs the same comparison
def compare(first: Side, second: Side) -> tuple[list[Compared], tuple[int, int]]:
    """The questions that both sides have, and the number of questions that only one side has."""
    before, after = _questions(first), _questions(second)
    rows = [Compared(*key[:2], (before[key], after[key])) for key in before if key in after]
    return rows, (len(before) - len(rows), len(after) - len(rows))


def _questions(side: Side) -> dict[tuple[str, str, str], Samples]:
    """By id, text and gold answer: runs on other files may give an id to another question."""
    rows = side.run.queries.rows_of(
        """WITH paired AS (
          SELECT question_id, string_agg(kind, ', ' ORDER BY "row") AS kinds,
            sum(hash(chosen_id, rejected_id)::HUGEINT) AS trajectories
          FROM pairs WHERE "group" = ? GROUP BY question_id
        )
        SELECT question_id, question, gold, any_value(dataset), count(*) FILTER (correct),
          count(*), list_sort(list_distinct(list(failure))), any_value(kinds),
          any_value(trajectories)
        FROM trajectories LEFT JOIN paired USING (question_id) WHERE "group" = ?
        GROUP BY question_id, question, gold ORDER BY min(n)""",
        [side.group.key] * 2,
    )
    return {(id, question, gold): Samples(*of_side) for id, question, gold, *of_side in rows}


def side(run: OpenRun, key: str, place: int) -> Side:
    """The group called ``key``; without a key the first policy for side 0 and the last for side 1.

    A run with fewer than two evaluated policies has rounds in their place. Raises InputError for an
    unknown group.
    """
    groups = run.sources.groups
    if not key:
        policies = [group for group in groups if group.key.startswith("policy-")]
        return Side(run, (policies if len(policies) > 1 else groups)[-place])
    found = run.sources.group(key)
    if found is None:
        known = ", ".join(group.key for group in groups)
        raise InputError(f"{run.name} has no {key!r:.60}; expected one of {known}")
    return Side(run, found)


@dataclass(frozen=True)
class Selection:
    """The questions of a comparison, and those that match an address (``shown``)."""

    rows: list[Compared]
    only: tuple[int, int]
    shown: list[Compared]
    filters: Filters


def selection(sides: tuple[Side, Side], parameters: Mapping[str, str]) -> Selection:
    """The questions with the outcome, change of pairs and failure mode of an address.

    A question has the failure modes of its samples on the worse side. Raises InputError for an
    unknown filter.
    """
    rows, only = compare(*sides)
    given = {name: parameters.get(name, "") for name in _FILTERS}
    for name, value in given.items():
        known = _FILTERS[name]
        if value and value not in known:
            raise InputError(f"{name} is {value!r:.60}; expected one of {', '.join(known)}")
    wanted = {name: value for name, value in given.items() if value}
    shown = [row for row in rows if all(v in row.values(name) for name, v in wanted.items())]
    (run_a, a), (run_b, b) = ((side.run.name, side.group.key) for side in sides)
    address = {"run_a": run_a, "a": a, "run_b": run_b, "b": b, **given}
    return Selection(rows, only, shown, Filters(address, "", ()))


def comparison(selected: Selection, parameters: Mapping[str, str]) -> dict[str, Any]:
    """The variables of the page: counts of the values of each filter, and one page of questions.

    Raises InputError for a page that is not a number.
    """
    shown, filters = selected.shown, selected.filters
    page = min(page_number(parameters.get("page") or "1"), Listing([], len(shown), 1).pages)
    start = (page - 1) * PAGE_SIZE
    counted = {name: Counter(v for row in shown for v in row.values(name)) for name in _FILTERS}
    return {
        "only": selected.only,
        "total": len(selected.rows),
        "has_pairs": any(row.change != "none" for row in selected.rows),
        "filters": filters,
        "listing": Listing(
            [{"row": row} for row in shown[start : start + PAGE_SIZE]], len(shown), page
        ),
        "facets": {
            name: {value: counts[value] for value in _FILTERS[name] if counts[value]}
            for name, counts in counted.items()
        },
        "meanings": _FILTERS,
    }
