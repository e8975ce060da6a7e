"""Means, bootstrap intervals and paired tests of outcomes, against results computed by hand."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from pipeline.core.errors import StoreError
from pipeline.evaluation.compare import paired_test
from pipeline.evaluation.failures import FailureMode
from pipeline.evaluation.measured import merge_policies
from pipeline.evaluation.metrics import Outcome, measure, metrics_rows
from tests.stages.fabricated_run import trajectory, write_evaluation


def outcome(question: str, dataset: str, em: float, part: str | None = None) -> Outcome:
    mode = FailureMode.RIGHT if em else FailureMode.OTHER
    scores = (em, em, em)
    return Outcome(
        question, dataset, part, *scores, 1, True, 2, 2, 40, 60, "answer", mode, None, 2, "multi"
    )


def test_answers_are_scored_against_the_gold_answers() -> None:
    measured = measure(trajectory("q", "the Ostar city", steps=2), "unseen")
    assert (measured.em, measured.f1, measured.cem, measured.words) == (0.0, 2 / 3, 1.0, 3)
    assert (measured.steps, measured.searches) == (2, 2)
    assert (measured.thinking, measured.retrieved) == (40, 60)
    assert (measured.part, measured.stop, measured.format_ok) == ("unseen", "answer", True)


def test_a_trajectory_without_an_answer_scores_zero_and_counts_its_tokens() -> None:
    measured = measure(trajectory("q", None, steps=3), None)
    assert (measured.em, measured.f1, measured.cem, measured.format_ok) == (0.0, 0.0, 0.0, False)
    assert (measured.steps, measured.thinking) == (3, 60)


def test_all_single_hop_and_multi_hop_are_averages_over_data_sets_and_not_over_questions() -> None:
    """nq 1 and popqa 0.5 are single-hop: 0.75. musique 0 and hotpotqa 0.5 are multi-hop: 0.25.

    Over all data sets that is 0.5, and over the eight questions 0.375.
    """
    scores = {
        ("nq", "single"): [1.0], ("popqa", "single"): [1.0, 0.0],
        ("musique", "multi"): [0.0, 0.0, 0.0], ("hotpotqa", "multi"): [0.0, 1.0],
    }  # fmt: skip
    outcomes = [
        replace(outcome(f"{dataset}{n}", dataset, em), hop=hop)
        for (dataset, hop), values in scores.items()
        for n, em in enumerate(values)
    ]
    rows = metrics_rows("sft", "test", outcomes, {"total": 3.0}, seed=0)
    table = {row["dataset"]: row for row in rows}
    assert [row["dataset"] for row in rows][-3:] == ["multi-hop", "all-questions", "all"]
    assert [table[name]["em"] for name in ("single-hop", "multi-hop", "all")] == [0.75, 0.25, 0.5]
    assert [table[name]["n"] for name in ("single-hop", "multi-hop", "all")] == [3, 5, 8]
    assert [row["seconds"] for row in rows[-3:]] == [None, None, {"total": 3.0}]


def test_questions_by_number_of_hops_are_averaged_over_data_sets_with_equal_weight() -> None:
    """Two hops: nq 1/1 and musique 1/3, so 2/3; three hops: musique alone, 0."""
    outcomes = [
        replace(outcome(f"q{n}", dataset, em), hops=hops, part="unseen")
        for n, (dataset, em, hops) in enumerate(
            [
                ("nq", 1.0, 2), ("musique", 1.0, 2), ("musique", 0.0, 2), ("musique", 0.0, 2),
                ("musique", 0.0, 3),
            ]
        )
    ]  # fmt: skip
    rows = metrics_rows("sft", "test", outcomes, {}, seed=0)
    found = {row["dataset"]: (row["n"], row["em"]) for row in rows if row["split"] == "test"}
    assert found["2-hop"] == (4, pytest.approx(2 / 3))
    assert found["3-hop"] == (1, 0.0)
    assert rows[-1]["split"] == "test/unseen"
    of_part = {row["dataset"] for row in rows if row["split"] != "test"}
    assert of_part == {"nq", "musique", "all-questions", "all"}


def test_a_row_has_the_documented_keys_and_none_for_unmeasured_values() -> None:
    seconds = {"generation": 2.0}
    tokens = {"thinking": 40.0, "retrieved": 60.0, "total": 100.0}
    result = metrics_rows("sft", "test", [outcome("q", "nq", 1.0)], seconds, seed=0)
    assert result[-1] == {
        "policy": "sft",
        "dataset": "all",
        "split": "test",
        "n": 1,
        "em": 1.0,
        "f1": 1.0,
        "cem": 1.0,
        "words": 1.0,
        "format_ok": 1.0,
        "steps": 2.0,
        "tokens": tokens | {"per_retrieval": 30.0},
        "osr": None,
        "usr": None,
        "searches": 2.0,
        "unknown": None,
        "seconds": {"generation": 2.0},
        # One question cannot be resampled.
        "ci": dict.fromkeys(
            ("em", "f1", "cem", "words", "format_ok", "steps", "searches", *tokens)
        ),
        "failure_modes": {
            mode: {"n": int(mode == "right"), "share": float(mode == "right")}
            for mode in FailureMode
        },
    }
    assert result[0]["seconds"] is None


def test_parts_of_a_split_have_separate_rows() -> None:
    outcomes = [outcome("a", "nq", 1.0), outcome("b", "nq", 0.0, "unseen")]
    result = metrics_rows("sft", "test", outcomes, {}, seed=0)
    assert [(r["split"], r["dataset"], r["n"], r["em"]) for r in result] == [
        ("test", "nq", 2, 0.5),
        ("test", "all-questions", 2, 0.5),
        ("test", "all", 2, 0.5),
        ("test/unseen", "nq", 1, 0.0),
        ("test/unseen", "all-questions", 1, 0.0),
        ("test/unseen", "all", 1, 0.0),
    ]


def test_shares_of_failure_modes_are_averaged_over_data_sets_and_counts_added_up() -> None:
    """One of three MuSiQue trajectories and the only NQ trajectory are misread: (1/3 + 1) / 2."""
    modes = [("musique", mode) for mode in ("misread", "right", "not_asked")] + [("nq", "misread")]
    outcomes = [
        replace(outcome(f"q{n}", dataset, 0.0), failure_mode=FailureMode(mode))
        for n, (dataset, mode) in enumerate(modes)
    ]
    rows = metrics_rows("sft", "test", outcomes, {}, seed=0)
    found = {row["dataset"]: row["failure_modes"] for row in rows}
    assert list(found["musique"]) == [mode.value for mode in FailureMode]
    assert found["musique"]["misread"] == {"n": 1, "share": pytest.approx(1 / 3)}
    assert found["nq"]["right"] == {"n": 0, "share": 0.0}
    assert found["all"]["misread"] == {"n": 2, "share": pytest.approx(2 / 3)}


def test_the_paired_test_agrees_with_a_hand_calculation() -> None:
    """Differences 1, 1, 0, 1: mean 0.75, sd 0.5, t = 0.75 / (0.5 / 2) = 3, 3 degrees of freedom.

    Two-sided p of t = 3 with 3 degrees is 0.0577; the 95 % quantile is 3.182.
    """
    test = paired_test([np.array([1.0, 1.0, 0.0, 1.0])])
    assert test["difference"] == 0.75
    assert test["t"] == pytest.approx(3.0)
    assert test["p"] == pytest.approx(0.0577, abs=5e-5)
    assert test["interval"] == pytest.approx([0.75 - 0.25 * 3.1824, 0.75 + 0.25 * 3.1824], abs=1e-3)


def test_the_paired_test_over_data_sets_gives_each_of_them_equal_weight() -> None:
    """Differences 1, 1, 0, 1 and 0, 0: means .75 and 0, so .375, with half the error of the first.

    t is the 3 of the test above, with its degrees of freedom, since the second does not vary; as one
    sample the mean is .5 and t is sqrt(5).
    """
    first, second = np.array([1.0, 1.0, 0.0, 1.0]), np.zeros(2)
    both, pooled = paired_test([first, second]), paired_test([np.concatenate([first, second])])
    assert (both["difference"], pooled["difference"]) == (0.375, 0.5)
    assert (both["t"], both["p"]) == (pytest.approx(3.0), paired_test([first])["p"])
    assert pooled["t"] == pytest.approx(5**0.5)
    half = 0.125 * 3.1824
    assert both["interval"] == pytest.approx([0.375 - half, 0.375 + half], abs=1e-3)


def test_the_paired_test_over_varying_data_sets_is_welchs() -> None:
    """For two data sets of half the difference it is Welch's test of the one against minus the other."""
    from scipy.stats import ttest_ind

    rng = np.random.default_rng(0)
    a, b = rng.normal(0.3, 1, 12), rng.normal(0.1, 3, 7)
    expected = ttest_ind(a, -b, equal_var=False)
    found = paired_test([a, b])
    assert (found["t"], found["p"]) == pytest.approx((expected.statistic, expected.pvalue))


@pytest.mark.parametrize(
    ("differences", "p"),
    [([0.0] * 3, 1.0), ([1e-17, 0.0], 1.0), ([0.5] * 3, None), ([0.8 - 0.6, 0.7 - 0.5], None)],
)
def test_equal_differences_show_no_spread_to_test_by(
    differences: list[float], p: float | None
) -> None:
    test = paired_test([np.array(differences)])
    shift = round(differences[0], 9)
    assert test == {"difference": pytest.approx(shift), "interval": None, "t": None, "p": p}


def test_merge_tests_consecutive_policies_and_the_last_against_the_first(tmp_path: Path) -> None:
    shards = {
        name: write_evaluation(
            tmp_path / name,
            [trajectory(f"q{n}", "Ostar" if n < right else "Vell") for n in range(4)],
        )
        for name, right in (("sft", 1), ("round-1", 2), ("round-2", 4))
    }
    output = tmp_path / "merged"
    merge_policies(shards, output)
    tests = json.loads((output / "comparison.json").read_text())
    differences = [
        (t["before"], t["after"], t["difference"], t["n"])
        for t in tests
        if t["measure"] == "em" and t["dataset"] == "all"
    ]
    assert differences == [
        ("sft", "round-1", 0.25, 4),
        ("round-1", "round-2", 0.5, 4),
        ("sft", "round-2", 0.75, 4),
    ]
    metrics = json.loads((output / "metrics.json").read_text())
    assert [(r["policy"], r["em"]) for r in metrics if r["dataset"] == "all"] == [
        ("sft", 0.25),
        ("round-1", 0.5),
        ("round-2", 1.0),
    ]


@pytest.mark.parametrize(
    ("policies", "problem"),
    [
        ([["q1"], ["q2"]], "different questions: 2 occur in only one"),
        ([["q1", "q1"]], "question q1 was evaluated twice"),
    ],
)
def test_policies_evaluated_on_different_questions_or_twice_on_one_are_refused(
    policies: list[list[str]], problem: str, tmp_path: Path
) -> None:
    shards = {}
    for policy, questions in enumerate(policies):
        named = [trajectory(q, "Ostar", name=f"{q}-{n}") for n, q in enumerate(questions)]
        shards[f"round-{policy}"] = write_evaluation(tmp_path / str(policy), named)
    with pytest.raises(StoreError, match=problem):
        merge_policies(shards, tmp_path / "merged")
