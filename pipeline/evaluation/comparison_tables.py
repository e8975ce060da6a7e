"""Tables of compared runs as texts: for the terminal and Markdown.

Input: a `Comparison`. Output: tables for one data set or average.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from pipeline.core.answer_metrics import AVERAGE_TITLES, OF_ANSWERS
from pipeline.core.atomic import json_text
from pipeline.core.errors import InputError
from pipeline.evaluation.compare import interval_text, p_text, parted
from pipeline.evaluation.policy_names import in_order, policy_title
from pipeline.evaluation.run_comparison import Comparison

# For each measure its title, the factor of its values and their decimals.
_SHOWN = {
    **OF_ANSWERS,
    "format_ok": ("well-formed", 100, 1),
    "steps": ("steps", 1, 2),
    "searches": ("searches", 1, 2),
    "osr": ("over-search rate", 100, 1),
    "usr": ("under-search rate", 100, 1),
    "total": ("tokens", 1, 0),
    "distinct_answers": ("distinct answers", 1, 2),
    "distinct_queries": ("distinct queries", 1, 2),
}


class Table(NamedTuple):
    """A table of texts under a title, with a note below it."""

    title: str
    header: Sequence[str]
    rows: Sequence[Sequence[str]]
    note: str = ""


def tables(comparison: Comparison, dataset: str) -> list[Table]:
    """The tables of a comparison for one data set or average.

    Raises InputError when no run has such rows.
    """
    several = any(len(group["runs"]) > 1 for group in comparison.groups)
    result = [_runs(comparison)] if several else []
    result += measure_tables(comparison, dataset)
    if comparison.pairs:
        result.append(_pairs(comparison))
    if comparison.settings:
        result.append(_settings(comparison))
    return result


def _runs(comparison: Comparison) -> Table:
    """The runs and seeds of each row."""
    return Table(
        "Runs",
        ["row", "runs", "seeds"],
        [
            [group["label"], ", ".join(group["runs"]), ", ".join(map(str, group["seeds"]))]
            for group in comparison.groups
        ],
    )


def _settings(comparison: Comparison) -> Table:
    """The settings in which the rows differ."""
    labels = [group["label"] for group in comparison.groups]
    differing = [
        [row["setting"], *("–" if value is None else _plain(value) for value in row["values"])]
        for row in comparison.settings
    ]
    rules = any(row["setting"] == "evaluation.cem" for row in comparison.settings)
    note = "CEM is not tested between rows with different evaluation.cem" if rules else ""
    return Table("Settings that differ", ["setting", *labels], differing, note)


def measure_tables(comparison: Comparison, dataset: str) -> list[Table]:
    """A table for each measure, with policies as columns, and the paired tests.

    Leaves out measures that no run has, and searches if they look the same as the steps. Raises
    InputError when no run has rows of the data set.
    """
    rows = [row for row in comparison.means if row["dataset"] == dataset]
    if not rows:
        known = dict.fromkeys(row["dataset"] for row in comparison.means)
        raise InputError(f"--dataset is {dataset!r}; the runs have {', '.join(known)}")
    policies = in_order(row["policy"] for row in rows)
    labels = [group["label"] for group in comparison.groups]
    result = []
    by_measure = {
        measure: {(r["group"], r["policy"]): r for r in rows if r["measure"] == measure}
        for measure in _SHOWN
    }
    shown = [measure for measure, cells in by_measure.items() if cells]
    if _texts(by_measure["searches"]) == _texts(by_measure["steps"]):
        shown.remove("searches")
    for measure in shown:
        cells = by_measure[measure]
        result.append(
            Table(
                f"{_SHOWN[measure][0]}, {AVERAGE_TITLES.get(dataset, dataset)}",
                ["", *map(policy_title, policies)],
                [
                    [label, *(_mean(cells.get((label, policy)), measure) for policy in policies)]
                    for label in labels
                ],
                "mean ± standard deviation over seeds" if measure == "em" else "",
            )
        )
    tests = [
        test for test in comparison.tests if test["dataset"] == dataset and test["measure"] in shown
    ]
    return [*result, _tests(tests)] if tests else result


def _texts(cells: Mapping[tuple[str, str], dict[str, Any]]) -> dict[tuple[str, str], str]:
    return {place: _mean(row, "steps") for place, row in cells.items()}


def _pairs(comparison: Comparison) -> Table:
    """Kinds of pairs by round."""
    kinds = list(dict.fromkeys(row["kind"] for row in comparison.pairs))
    cells = {(r["group"], r["round"], r["kind"]): r for r in comparison.pairs}
    rows = []
    for place in dict.fromkeys((r["group"], r["round"]) for r in comparison.pairs):
        counts = [_number(cells.get((*place, kind)), 1, 0, "0") for kind in kinds]
        rows.append([*map(str, place), *counts])
    return Table("Preference pairs by kind", ["row", "round", "pairs", *kinds[1:]], rows)


def _tests(tests: Sequence[dict]) -> Table:  # type: ignore[type-arg]
    """The tests of all rows, except for policies that differ in no question."""
    differing = {
        (test["after"], test["policy"])
        for test in tests
        if test["difference"] or test["interval"] or test["n"] < 2
    }
    shown = [test for test in tests if (test["after"], test["policy"]) in differing]
    rows = [
        [test["after"], test["before"], policy_title(test["policy"]), *test_cells(test)]
        for test in shown
    ]
    left_out = "; policies that answer every question alike are left out"
    return Table(
        "Paired tests",
        ["row", "against", "policy", "measure", "questions", "difference", "95 %", "p"],
        rows,
        "differences are averaged over seeds; p: two-sided paired t-test, in which the data sets "
        "of an average over them have equal weight; it is not corrected for multiple tests, and "
        "generalizes to other questions, not to other seeds"
        f"{left_out if len(shown) < len(tests) else ''}"
        + "".join(f"\n{sentence}" for sentence in parted(shown)),
    )


def shown_as(measure: str) -> tuple[str, int, int]:
    """Title, factor and decimals of a measure; pass@k, majority@k and ties are in percent."""
    return _SHOWN.get(measure, (measure, 100, 1))


def test_cells(test: Mapping[str, Any]) -> list[str]:
    """Measure, questions, difference, its interval and p of a paired test."""
    measure, scale, digits = shown_as(test["measure"])
    difference, interval = (
        interval_text(bounds, scale=scale, form=f"+.{digits}f")
        for bounds in ([test["difference"]], test["interval"])
    )
    return [measure, f"{test['n']:,}", difference, interval, p_text(test["p"])]


def _mean(row: dict | None, measure: str) -> str:  # type: ignore[type-arg]
    return _number(row, *_SHOWN[measure][1:])


def _number(row: dict | None, scale: int, digits: int, missing: str = "–") -> str:  # type: ignore[type-arg]
    if row is None:
        return missing
    spread = "" if row["spread"] is None else f" ± {scale * row['spread']:.{digits}f}"
    return f"{scale * row['mean']:.{digits}f}{spread}"


def _plain(value: object) -> str:
    return value if isinstance(value, str) else json_text(value)


def markdown(shown: Sequence[Table]) -> str:
    """The tables as Markdown."""
    parts = []
    for table in shown:
        lines = [table.header, ["---"] * len(table.header), *table.rows]
        text = "\n".join(f"| {' | '.join(map(_cell, line))} |" for line in lines)
        note = f"\n\n{table.note[0].upper()}{table.note[1:]}." if table.note else ""
        parts.append(f"## {table.title}\n\n{text}{note}\n")
    return "\n".join(parts)


def _cell(text: str) -> str:
    return " ".join(text.replace("|", "\\|").split())
