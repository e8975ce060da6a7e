"""pass@k, majority@k and diversity of several trajectories per question, on known numbers."""

from __future__ import annotations

import json
from dataclasses import replace
from fractions import Fraction
from itertools import combinations
from pathlib import Path
from typing import Any

import pytest

from pipeline.core.errors import InputError
from pipeline.core.record_io import as_json, write_jsonl
from pipeline.core.records import Question, Step, Trajectory
from pipeline.evaluation.measured import compare_policies, read_outcomes, write_measured
from pipeline.evaluation.sampled import majority, pass_at_k
from tests.cli.malformed_inputs import finished
from tests.stages.fabricated_run import trajectory


def test_pass_at_k_is_the_share_of_subsets_with_a_right_trajectory() -> None:
    for n in range(1, 9):
        for c in range(n + 1):
            for k in range(1, n + 1):
                subsets = list(combinations(range(n), k))  # trajectories below c are right
                right = sum(any(place < c for place in subset) for subset in subsets)
                assert pass_at_k(n, c, k) == float(Fraction(right, len(subsets)))


def test_pass_at_k_of_many_trajectories_does_not_overflow() -> None:
    assert pass_at_k(10_000, 1, 5_000) == 0.5
    assert pass_at_k(10_000, 0, 10_000) == 0.0
    assert pass_at_k(10_000, 1, 10_000) == 1.0


@pytest.mark.parametrize(
    ("n", "c", "k"), [(3, 1, 4), (3, 4, 1), (3, -1, 1), (3, 1, 0), (0, 0, 1), (3, 1, -2), (0, 0, 0)]
)
def test_numbers_without_a_pass_at_k_are_refused(n: int, c: int, k: int) -> None:
    with pytest.raises(InputError, match=rf"pass@k of n={n}, c={c}, k={k}: expected 0 <= c <= n"):
        pass_at_k(n, c, k)


@pytest.mark.parametrize(
    ("answers", "most"),
    [
        (["a", "b", "b"], ["b"]),
        (["b", "a", "a", "b"], ["b", "a"]),  # the one that occurs first decides
        (["", "", "", "a"], ["a"]),  # no answer has no vote
        (["", ""], []),
        (["a"], ["a"]),
        (["a", "b", "c"], ["a", "b", "c"]),
        ([], []),
    ],
)
def test_the_most_frequent_answers_are_named_in_the_order_of_their_occurrence(
    answers: list[str], most: list[str]
) -> None:
    assert majority(answers) == most


def of(question: str, dataset: str, *answers: str | None, searches: int = 1) -> list[Trajectory]:
    """A trajectory for each answer; trajectory k asks ``searches`` queries, the first of all alike."""
    return [
        replace(
            trajectory(question, answer, dataset=dataset, steps=searches, name=f"{question}/{k}"),
            steps=[Step(subquery=f"The Query {k if n else 0}.{n}?") for n in range(searches)],
            sample=k,
        )
        for k, answer in enumerate(answers)
    ]


def evaluated(directory: Path, groups: list[list[Trajectory]]) -> Path:
    directory.mkdir()
    sampled = [one for group in groups for one in group]
    questions = {
        one.question_id: Question(one.question_id, one.dataset, "Where?", ["Ostar"], "multi")
        for one in sampled
    }
    write_measured(directory, sampled, questions, split="test", seconds={}, samples=4)
    return directory


# Two of four right: pass@2 = 1 - C(2, 2) / C(4, 2) = 5/6. One of four: 1 - C(3, 2) / 6 = 1/2.
WORSE = [
    of("m1", "musique", "Ostar", "the Ostar.", "Vell", "Ime"),  # majority Ostar, 3 answers
    of("m2", "musique", "Vell", "Ostar", None, None),  # tied, Vell first
    of("n1", "nq", None, None, None, None, searches=2),  # no answer
]
BETTER = [
    of("m1", "musique", "Ostar", "Ostar", "Ostar", "Ostar"),
    of("m2", "musique", "Ostar", "Vell", None, None),  # tied, Ostar first
    of("n1", "nq", "Ostar", None, "Vell", "Vell", searches=2),
]


def test_rows_and_tests_have_the_known_numbers_by_data_set_and_by_both_averages(
    tmp_path: Path,
) -> None:
    directories = {
        "sft": evaluated(tmp_path / "sft", WORSE),
        "round-1": evaluated(tmp_path / "one", BETTER),
    }
    compared = compare_policies(directories, seed=0)
    names = ["em", "pass@2", "pass@4", "majority@4", "ties"]
    names += ["distinct_answers", "distinct_queries", "words"]
    of_sft = [row for row in compared.metrics if row["policy"] == "sft"]
    found = {row["dataset"]: [row[name] for name in names] for row in of_sft}
    musique = [3 / 8, (5 / 6 + 1 / 2) / 2, 1.0, 0.5, 0.5, 2.5, 1.0, (5 / 4 + 2 / 4) / 2]
    nq = [0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 5.0, 0.0]  # one query of all, and one more of each
    assert found["musique"] == pytest.approx(musique)
    assert found["nq"] == pytest.approx(nq)
    both = list(zip(musique, nq, strict=True))
    assert found["all"] == pytest.approx([(m + n) / 2 for m, n in both])
    assert found["all-questions"] == pytest.approx([(2 * m + n) / 3 for m, n in both])
    assert [row["n"] for row in compared.metrics[:4]] == [2, 1, 3, 3]
    [whole] = [row for row in of_sft if row["dataset"] == "musique"]
    low, high = whole["ci"]["pass@2"]
    assert (low, high) == pytest.approx((1 / 2, 5 / 6))  # of two questions: either one twice
    assert sum(mode["n"] for mode in whole["failure_modes"].values()) == 2
    tests = {(test["dataset"], test["measure"]): test for test in compared.tests}
    for dataset, n, pass_2, most in (
        ("all-questions", 3, (1 - 5 / 6 + 0 + 1 / 2) / 3, 1 / 3),
        ("all", 3, ((1 - 5 / 6) / 2 + 1 / 2) / 2, 1 / 4),
        ("nq", 1, 1 / 2, 0.0),
    ):
        assert tests[dataset, "pass@2"]["difference"] == pytest.approx(pass_2)
        assert tests[dataset, "majority@4"]["difference"] == pytest.approx(most)
        assert tests[dataset, "pass@2"]["n"] == n
    assert tests["all-questions", "pass@2"]["p"] > 0.05


def test_the_file_has_an_outcome_per_question_that_is_read_as_it_was_written(
    tmp_path: Path,
) -> None:
    directory = evaluated(tmp_path / "sft", WORSE)
    outcomes = read_outcomes(directory).outcomes
    assert [outcome.question_id for outcome in outcomes] == ["m1", "m2", "n1"]
    first, tied, none = outcomes
    assert (first.em, first.words, first.sampled["em"], first.sampled["words"]) == (1, 1, 0.5, 1.25)
    assert (tied.em, tied.sampled["ties"], tied.sampled["format_ok"]) == (0, 1, 0.5)
    assert none.stop == "max_tokens"
    written = json.loads((directory / "rows.json").read_text())["outcomes"]
    assert [row["sampled"] for row in written] == [outcome.sampled for outcome in outcomes]


def test_one_trajectory_per_question_is_written_without_these_measures(tmp_path: Path) -> None:
    [one, *_] = WORSE[0]
    question = Question("m1", "musique", "Where?", ["Ostar"], "multi")
    write_measured(tmp_path, [one], {"m1": question}, split="test", seconds={})
    [written] = json.loads((tmp_path / "rows.json").read_text())["outcomes"]
    assert not {"sampled", "words"} & written.keys()
    [row, *_] = compare_policies({"sft": tmp_path}, seed=0).metrics
    assert not [name for name in (*row, *row["ci"]) if "@" in name or name == "ties"]


def test_intervals_of_a_file_are_over_questions_and_not_over_their_samples(tmp_path: Path) -> None:
    """Eight equal samples say no more than one; a question id may occur in two data sets.

    A question with one right of two answers has EM .5.
    """

    def rows(samples: int, *more: Trajectory) -> list[dict[str, Any]]:
        records = [
            replace(
                trajectory(f"q{n}", "Ostar" if n % 2 else "Vell", name=f"{dataset}{n}/{sample}"),
                dataset=dataset,
            )
            for dataset in ("musique", "nq")
            for n in range(4)
            for sample in range(samples)
        ]
        path = tmp_path / "t.jsonl"
        write_jsonl(path, map(as_json, [*records, *more]))
        found: list[dict[str, Any]] = json.loads(finished("metrics", path, "--table", "--json"))
        return found

    once, often = rows(1), rows(8)
    assert [row["n"] for row in often] == [4, 4, 8, 8]
    assert {(row["tokens"]["total"], row["searches"]) for row in often} == {(50.0, 1.0)}
    assert [(row["em"], row["ci"]) for row in often] == [(row["em"], row["ci"]) for row in once]
    other = replace(trajectory("q0", "Ostar", name="other"), dataset="musique")
    assert rows(1, other)[0]["em"] == (0.5 + 1 + 0 + 1) / 4
    nameless = [replace(trajectory("", answer), dataset="nq") for answer in ("Ostar", "Vell")]
    assert [row["n"] for row in rows(1, *nameless)] == [4, 6, 10, 10]
