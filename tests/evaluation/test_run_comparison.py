"""Comparison of runs: means, spread, tests and refusals, against results computed by hand."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import pytest

from pipeline.core.errors import InputError
from pipeline.evaluation.comparison_tables import measure_tables, tables
from pipeline.evaluation.metrics import metrics_rows
from pipeline.evaluation.run_comparison import RunResults, compare_runs, pair_rows
from tests.evaluation.test_policy_metrics import outcome


def run(
    name: str,
    em: list[float],
    *,
    seed: int = 0,
    questions: str = "q",
    policy: str = "sft",
    hop: str = "multi",
    **settings: object,
) -> RunResults:
    """A run of one policy with one question per number."""
    outcomes = [replace(outcome(str(n), "musique", value), hop=hop) for n, value in enumerate(em)]
    return RunResults(
        name=name,
        seed=seed,
        settings={"seed": seed, **settings},
        split="test",
        questions=questions,
        rows=metrics_rows(policy, "test", outcomes, {}, seed=0),
        outcomes={policy: {one.question_id: one for one in outcomes}},
    )


def test_every_measure_of_a_published_table_has_a_mean_and_a_table() -> None:
    """CEM differs from EM, two steps have one search, and only run b was judged in the second pair."""
    judged = [
        replace(
            r, rows=[row | {"cem": 1.0, "searches": 1.0, "osr": o, "usr": 0.5} for row in r.rows]
        )
        for r, o in ((run("a", [1, 0]), 0.25), (run("b", [1, 0], seed=1), 0.75))
    ]
    found = {row["measure"]: row for row in compare_runs(judged).means if row["dataset"] == "all"}
    assert found["cem"]["values"] == [1.0, 1.0]
    assert (found["osr"]["mean"], found["osr"]["values"]) == (0.5, [0.25, 0.75])
    titles = [table.title for table in measure_tables(compare_runs(judged), "all")]
    for name in ("CEM", "searches", "over-search rate", "under-search rate"):
        assert f"{name}, average over data sets" in titles
    half = compare_runs([judged[0], run("b", [1, 0], seed=1)])
    assert "osr" not in {row["measure"] for row in half.means}


def test_only_settings_that_differ_are_listed_and_seeds_never() -> None:
    runs = [run("a", [1], k=5, eta=1.0), run("b", [1], seed=1, k=3, eta=1.0, extra="x")]
    assert compare_runs(runs).settings == [
        {"setting": "extra", "values": [None, "x"]},
        {"setting": "k", "values": [5, 3]},
    ]


def test_seeds_may_have_worlds_of_their_own() -> None:
    """Question 0 of one world is another than question 0 of the other."""
    first = [run("a", [0], k=1, questions="w0"), run("b", [0], k=1, seed=1, questions="w1")]
    other = [run("c", [1], k=2, questions="w0"), run("d", [1], k=2, seed=1, questions="w1")]
    tests = compare_runs([*first, *other]).tests
    [test] = [t for t in tests if (t["measure"], t["dataset"]) == ("em", "all")]
    assert (test["n"], test["difference"]) == (2, 1.0)


def test_cover_exact_match_of_two_rules_is_not_tested() -> None:
    """Substrings and whole words are two measures; a difference says nothing about policies."""
    runs = [
        run("a", [1, 0], k=1),
        run("b", [0, 0], k=2),
        run("c", [0, 0], **{"evaluation.cem": "substring"}),
    ]
    comparison = compare_runs(runs)
    measures = {
        name: {test["measure"] for test in comparison.tests if test["after"] == name}
        for name in "bc"
    }
    assert measures["b"] - measures["c"] == {"cem"}
    assert "em" in measures["c"]
    note = "CEM is not tested between rows with different evaluation.cem"
    assert tables(comparison, "all")[-1].note == note
    assert tables(compare_runs(runs[:2]), "all")[-1].note == ""


def test_a_policy_that_only_some_runs_have_is_not_tested() -> None:
    runs = [run("a", [1], k=1), run("b", [1], k=2, policy="round-1")]
    assert compare_runs(runs).tests == []


@pytest.mark.parametrize(
    ("runs", "problem"),
    [
        ([], "no runs to compare"),
        (
            [run("a", [1], k=1), run("b", [1], k=2, questions="other")],
            "run b was not evaluated on the questions of a; compare runs over the same questions",
        ),
    ],
)
def test_runs_that_cannot_be_compared_are_refused(runs: list[RunResults], problem: str) -> None:
    with pytest.raises(InputError) as refused:
        compare_runs(runs)
    assert problem in str(refused.value)
    assert "\n" not in str(refused.value)


def test_a_kind_that_one_seed_lacks_counts_as_none_of_its_pairs() -> None:
    runs = [{1: Counter(easy=3, hard=1)}, {1: Counter(easy=5)}]
    rows = {row["kind"]: row for row in pair_rows("a", runs)}
    assert (rows["all"]["mean"], rows["all"]["values"]) == (4.5, [4, 5])
    assert (rows["hard"]["mean"], rows["hard"]["spread"]) == (0.5, 0.5**0.5)
