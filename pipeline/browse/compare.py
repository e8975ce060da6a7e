"""Compare two rounds or policies of one run or of two: questions won and lost, pairs changed.

Input: two groups of trajectories. Output: for every question that both have, the share of right
answers (exact match) on both sides, and the change of its pairs. A question is won when the second
side answers a larger share of its samples right.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

from pipeline.browse.figures import category_bars
from pipeline.browse.filters import PAGE_SIZE, Filters, page_number
from pipeline.browse.queries import Listing
from pipeline.browse.rendering import FAILURE_MEANINGS
from pipeline.browse.site import OpenRun
from pipeline.browse.sources import Group
from pipeline.core.errors import InputError

Outcome = Literal["won", "lost", "same"]
Change = Literal["new", "gone", "changed", "kept", "none"]
MEANINGS: Mapping[str, str] = {
    "won": "a larger share of right answers on the second side",
    "lost": "a smaller share of right answers on the second side",
    "same": "an equal share of right answers",
    "new": "only the second side has pairs of the question",
    "gone": "only the first side has pairs of the question",
    "changed": "both sides have pairs of the question, and not of the same trajectories",
    "kept": "both sides have the same pairs",
    "none": "no side has a pair of the question",
}


@dataclass(frozen=True)
class Side:
    """One side of the comparison."""

    run: OpenRun
    group: Group


class _Samples(NamedTuple):
    question: str
    dataset: str
    right: int
    samples: int
    failures: Sequence[str]


class Compared(NamedTuple):
    """One question on both sides, first side first.

    ``right`` and ``samples`` are counts, ``failures`` the failure modes of its samples, and
    ``pairs`` the kinds of its pairs.
    """

    question_id: str
    question: str
    dataset: str
    right: tuple[int, int]
    samples: tuple[int, int]
    failures: tuple[Sequence[str], Sequence[str]]
    pairs: tuple[str, str]
    outcome: Outcome
    change: Change


def compare(first: Side, second: Side) -> tuple[list[Compared], tuple[int, int]]:
    """The questions that both sides have, and the number of questions that only one side has."""
    samples = _samples(first), _samples(second)
    pairs = _pairs(first), _pairs(second)
    rows = []
    for question_id, before in samples[0].items():
        after = samples[1].get(question_id)
        if after is None:
            continue
        of_before, of_after = pairs[0].get(question_id), pairs[1].get(question_id)
        rows.append(
            Compared(
                question_id,
                before.question,
                before.dataset,
                (before.right, after.right),
                (before.samples, after.samples),
                (before.failures, after.failures),
                (of_before[0] if of_before else "", of_after[0] if of_after else ""),
                _outcome(before, after),
                _change(of_before, of_after),
            )
        )
    return rows, (len(samples[0]) - len(rows), len(samples[1]) - len(rows))


def _outcome(before: _Samples, after: _Samples) -> Outcome:
    """Whether the second side answers a larger share of its samples right."""
    was, now = before.right * after.samples, after.right * before.samples
    return "won" if now > was else "lost" if now < was else "same"


def _change(before: tuple[str, int] | None, after: tuple[str, int] | None) -> Change:
    if before is None or after is None:
        return "gone" if before else "new" if after else "none"
    return "kept" if before == after else "changed"


def _samples(side: Side) -> dict[str, _Samples]:
    rows = side.run.queries.rows_of(
        "SELECT question_id, any_value(question), any_value(dataset), "
        "count(*) FILTER (correct), count(*), list_sort(list_distinct(list(failure))) "
        'FROM trajectories WHERE "group" = ? '
        "GROUP BY question_id ORDER BY min(n)",
        [side.group.key],
    )
    return {question_id: _Samples(*facts) for question_id, *facts in rows}


def _pairs(side: Side) -> dict[str, tuple[str, int]]:
    """The kinds of the pairs of every question, and a hash of their trajectories in any order."""
    rows = side.run.queries.rows_of(
        """SELECT question_id, string_agg(kind, ', ' ORDER BY "row"),
          sum(hash(chosen_id, rejected_id)::HUGEINT)
        FROM pairs WHERE "group" = ? GROUP BY question_id""",
        [side.group.key],
    )
    return {question_id: (kinds, trajectories) for question_id, kinds, trajectories in rows}


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


Comparer = Callable[[Side, Side], tuple[list[Compared], tuple[int, int]]]


@dataclass(frozen=True)
class Selection:
    """The questions of a comparison that match an address; ``rows`` are all matches."""

    rows: list[Compared]
    only: tuple[int, int]
    shown: list[Compared]
    filters: Filters


def selection(
    first: Side, second: Side, parameters: Mapping[str, str], comparer: Comparer = compare
) -> Selection:
    """The questions with the outcome, change of pairs and failure mode of an address.

    ``comparer`` is `compare`, or a cache of it. A question has the failure modes of its samples on
    the worse side (`failures`). Raises InputError for an unknown filter.
    """
    rows, only = comparer(first, second)
    given = {name: parameters.get(name, "") for name in ("outcome", "pairs", "failure")}
    for name, value in given.items():
        known = FAILURE_MEANINGS if name == "failure" else MEANINGS
        if value and value not in known:
            raise InputError(f"{name} is {value!r:.60}; expected one of {', '.join(known)}")
    shown = [
        row
        for row in rows
        if given["outcome"] in ("", row.outcome)
        and given["pairs"] in ("", row.change)
        and (not given["failure"] or given["failure"] in failures(row))
    ]
    sides = {
        "run_a": first.run.name,
        "a": first.group.key,
        "run_b": second.run.name,
        "b": second.group.key,
    }
    return Selection(rows, only, shown, Filters({**sides, **given}, "", ()))


def failures(row: Compared) -> Sequence[str]:
    """The failure modes of a question on its worse side, or on the second if both are equal."""
    return row.failures[0 if row.outcome == "won" else 1]


def comparison(selected: Selection, parameters: Mapping[str, str]) -> dict[str, Any]:
    """The variables of the page: counts as bars that filter, and one page of questions.

    Raises InputError for a page that is not a number.
    """
    shown, filters = selected.shown, selected.filters
    page = page_number(parameters.get("page") or "1")
    start = (page - 1) * PAGE_SIZE
    counted: Mapping[str, Counter[str]] = {
        "outcome": Counter(row.outcome for row in shown),
        "failure": Counter(mode for row in shown for mode in failures(row)),
        "pairs": Counter(row.change for row in shown),
    }
    known: Mapping[str, Sequence[str]] = {
        "outcome": ("won", "lost", "same"),
        "failure": [mode for mode in FAILURE_MEANINGS if counted["failure"][mode]],
        "pairs": ("new", "gone", "changed", "kept", "none"),
    }
    return {
        "only": selected.only,
        "total": len(selected.rows),
        "has_pairs": any(row.change != "none" for row in selected.rows),
        "filters": filters,
        "listing": Listing(
            [{"row": row} for row in shown[start : start + PAGE_SIZE]], len(shown), page
        ),
        "bars": {
            name: category_bars(
                {value: counts[value] for value in known[name]},
                lambda value, name=name: filters.address(**{name: value}),  # type: ignore[misc]
                {**MEANINGS, **FAILURE_MEANINGS},
            )
            for name, counts in counted.items()
        },
    }
