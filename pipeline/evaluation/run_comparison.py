"""Compare finished runs: means and spread over seeds, paired tests, and differences in settings.

Input: the results of runs (`RunResults`). Output: a `Comparison` of plain values. Runs whose
settings differ in seeds alone are one group; every other group is tested against the first. The
kinds of the pairs that runs train on are compared too, by round.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from statistics import fmean, stdev
from typing import Any

import numpy as np

from pipeline.core.answer_metrics import CoverMatch
from pipeline.core.atomic import json_text
from pipeline.core.errors import InputError
from pipeline.evaluation.compare import paired_test
from pipeline.evaluation.metrics import Outcome, grouped
from pipeline.evaluation.policy_names import in_order

COMPARED = ("em", "f1", "cem", "words", "format_ok", "steps", "searches", "total")
RATES = ("osr", "usr")  # over all steps of a data set, and only where judged
PairsByRound = Mapping[int, Counter[str]]  # the number of pairs of each kind
Unit = tuple[str, str]  # the questions that a run was evaluated on, and one of them


@dataclass(frozen=True)
class RunResults:
    """What is compared of one run.

    Attributes:
        name: the run's name in tables.
        seed: the setting ``seed``.
        settings: settings that decide results, by dotted name, seeds included.
        split: the split that was evaluated, such as "test".
        questions: a hash of the questions; equal for runs over the same questions.
        rows: rows as in ``metrics.json``.
        outcomes: the outcomes of every policy, by question id.
        pairs: the kinds of the preference pairs of every round that the policies were trained on.
        cem: the rule of cover exact match, the setting ``evaluation.cem``.
    """

    name: str
    seed: int
    settings: Mapping[str, Any]
    split: str
    questions: str
    rows: Sequence[Mapping[str, Any]]
    outcomes: Mapping[str, Mapping[str, Outcome]]
    pairs: PairsByRound = field(default_factory=dict)

    @property
    def cem(self) -> CoverMatch:
        rule: CoverMatch = self.settings.get("evaluation.cem", "words")
        return rule


@dataclass(frozen=True)
class Comparison:
    """Groups of runs, the settings in which they differ, their means, and tests against the first.

    Attributes:
        groups: ``label`` (the name of the first run), ``runs`` and ``seeds``.
        settings: ``setting`` and its ``values``, one for each group; None where unused.
        means: for each group, policy, data set and measure the ``mean`` over seeds, the standard
            deviation between them (``spread``, None for one seed) and the ``values``. Measures are
            `COMPARED`, and every measure of `RATES` that all runs of the group have.
        tests: for each further group, policy, data set or average, and measure the ``difference``
            to the first group, its ``interval``, ``p``, and the number ``n`` of questions. Measures
            are `COMPARED`, without CEM where the rules of both differ.
        pairs: for each group, round and kind the ``mean``, ``spread`` and ``values`` of the number
            of pairs.
    """

    groups: list[dict[str, Any]]
    settings: list[dict[str, Any]]
    means: list[dict[str, Any]]
    tests: list[dict[str, Any]]
    pairs: list[dict[str, Any]]


def compare_runs(runs: Sequence[RunResults]) -> Comparison:
    """Compare runs, in the order in which they are given.

    Raises InputError for no runs, for two runs with the same settings and seed, and for groups that
    were evaluated on different questions.
    """
    if not runs:
        raise InputError("no runs to compare; name at least one")
    grouped: dict[str, list[RunResults]] = {}
    for run in runs:
        same = grouped.setdefault(json_text(_settings(run), sort_keys=True), [])
        for twin in same:
            if _settings(twin, seeds=True) == _settings(run, seeds=True):
                # A stage whose inputs have the content of another run's is that run's output, with
                # its settings, so the recorded settings may be equal and the configurations differ.
                raise InputError(
                    f"runs {twin.name} and {run.name} have the same settings and the same seed "
                    f"({twin.seed}), or settings whose difference changed no output; name one of "
                    "them"
                )
        same.append(run)
    groups = list(grouped.values())
    for other in groups[1:]:
        _check_questions(groups[0], other)
    return Comparison(
        groups=[
            {"label": _label(g), "runs": [r.name for r in g], "seeds": [r.seed for r in g]}
            for g in groups
        ],
        settings=_differences([_settings(group[0]) for group in groups]),
        means=[row for group in groups for row in _means(group)],
        tests=[row for group in groups[1:] for row in _tests(groups[0], group)],
        pairs=[row for g in groups for row in pair_rows(_label(g), [run.pairs for run in g])],
    )


def _label(group: Sequence[RunResults]) -> str:
    return group[0].name


def _settings(run: RunResults, *, seeds: bool = False) -> dict[str, Any]:
    """The settings without the seeds, or the seeds alone."""
    return {
        name: value
        for name, value in run.settings.items()
        if (name.rpartition(".")[2] == "seed") == seeds
    }


def _differences(settings: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    names = sorted({name for values in settings for name in values})
    rows = [
        {"setting": name, "values": [values.get(name) for values in settings]} for name in names
    ]
    return [row for row in rows if any(value != row["values"][0] for value in row["values"])]


def _means(group: Sequence[RunResults]) -> Iterable[dict[str, Any]]:
    """Means over the runs of a group, of the rows that all of them have."""
    by_row = [
        {(row["policy"], row["dataset"]): row for row in run.rows if row["split"] == run.split}
        for run in group
    ]
    for policy, dataset in by_row[0]:
        if not all((policy, dataset) in rows for rows in by_row):
            continue
        for measure in (*COMPARED, *RATES):
            found = [_value(rows[policy, dataset], measure) for rows in by_row]
            values = [value for value in found if value is not None]
            if len(values) < len(found):
                continue
            yield {
                "group": _label(group), "policy": policy, "dataset": dataset, "measure": measure,
                **_spread(values),
            }  # fmt: skip


def _spread(values: Sequence[float]) -> dict[str, Any]:
    spread = stdev(values) if len(values) > 1 else None
    return {"mean": fmean(values), "spread": spread, "values": values}


def _value(row: Mapping[str, Any], measure: str) -> float | None:
    value = row["tokens"]["total"] if measure == "total" else row.get(measure)
    return None if value is None else float(value)


def _units(group: Sequence[RunResults], policy: str) -> dict[Unit, list[Outcome]]:
    """The outcomes of a policy by question, one for each seed that was evaluated on it."""
    units: dict[Unit, list[Outcome]] = {}
    for run in group:
        for question, outcome in run.outcomes.get(policy, {}).items():
            units.setdefault((run.questions, question), []).append(outcome)
    return units


def _check_questions(first: Sequence[RunResults], other: Sequence[RunResults]) -> None:
    sets = [{(run.questions, run.split) for run in group} for group in (first, other)]
    if sets[0] == sets[1]:
        return
    unmatched = next(
        run for run in (*other, *first) if (run.questions, run.split) in sets[0] ^ sets[1]
    )
    counterpart = other if unmatched in first else first
    raise InputError(
        f"run {unmatched.name} was not evaluated on the questions of {_names(counterpart)}; "
        "compare runs over the same questions (the same data files, evaluation.split and, in a "
        "closed world, its seed)"
    )


def _names(group: Sequence[RunResults]) -> str:
    return " and ".join(run.name for run in group)


def _tests(first: Sequence[RunResults], other: Sequence[RunResults]) -> Iterable[dict[str, Any]]:
    for policy in in_order(other[0].outcomes):
        before, after = _units(first, policy), _units(other, policy)
        if not before or before.keys() != after.keys():
            continue  # a policy that not all runs have
        outcome_of = {unit: outcomes[0] for unit, outcomes in before.items()}
        alike = first[0].cem == other[0].cem
        measures = [name for name in COMPARED if alike or name != "cem"]
        for dataset, units in grouped(before, outcome_of.__getitem__).items():
            for measure in measures:
                test = paired_test(
                    [
                        np.array([_mean(after[i], measure) - _mean(before[i], measure) for i in of])
                        for of in units
                    ]
                )
                yield {
                    "before": _label(first), "after": _label(other), "policy": policy,
                    "dataset": dataset, "measure": measure, "n": sum(map(len, units)),
                    **{name: test[name] for name in ("difference", "interval", "p")},
                }  # fmt: skip


def _mean(outcomes: Sequence[Outcome], measure: str) -> float:
    return math.fsum(outcome.values()[measure] for outcome in outcomes) / len(outcomes)


ALL_KINDS = "all"


def pair_rows(label: str, runs: Sequence[PairsByRound]) -> Iterable[dict[str, Any]]:
    """The numbers of pairs by round and kind: ``mean``, ``spread`` (None for one run), ``values``.

    Kind "all" counts every pair. Rounds that not all runs have are left out.
    """
    rounds = set.intersection(*(set(run) for run in runs))
    for number in sorted(rounds):
        kinds = dict.fromkeys(kind for run in runs for kind in sorted(run[number]))
        for kind in (ALL_KINDS, *kinds):
            values = [_count(run[number], kind) for run in runs]
            yield {
                "group": label, "round": number, "kind": kind, **_spread(values)
            }  # fmt: skip


def _count(kinds: Counter[str], kind: str) -> int:
    return kinds.total() if kind == ALL_KINDS else kinds[kind]
