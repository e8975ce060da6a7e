"""The papers' averages, from their own numbers by data set through this project's averaging."""

from __future__ import annotations

import pytest

from pipeline.core.answer_metrics import ALL, ALL_QUESTIONS
from pipeline.evaluation.metrics import metrics_rows
from pipeline.judges.search_errors import SearchErrors, VerdictCounts
from tests.evaluation.test_policy_metrics import outcome

# HiPRAG (arXiv 2510.07794): questions of NQ, TriviaQA, PopQA, HotpotQA, 2Wiki, MuSiQue, Bamboogle.
QUESTIONS = (3610, 11313, 14267, 7405, 12576, 2417, 125)
# Avg. CEM and Avg. OSR of table 2, then CEM (table 4) and OSR (table 5) of these data sets.
HIPRAG = {
    "Llama-3.2-3B PPO, baseline": (56.4, 7.3, (65.2, 74.5, 55.1, 47.0, 52.3, 18.7, 36.0), (12.5, 15.4, 5.0, 4.8, 3.7, 2.7, 8.7)),
    "Llama-3.2-3B PPO": (64.8, 6.0, (71.6, 77.2, 61.0, 57.7, 67.9, 25.7, 43.2), (11.9, 13.3, 4.5, 4.6, 1.8, 3.1, 5.0)),
    "3B-Instruct GRPO, baseline": (58.5, 8.4, (59.6, 69.1, 57.3, 52.4, 61.4, 20.6, 24.8), (8.4, 17.0, 5.6, 7.2, 4.3, 5.0, 10.3)),
    "3B-Instruct GRPO": (64.4, 4.1, (68.5, 74.2, 60.6, 59.2, 69.1, 27.9, 38.4), (4.4, 9.8, 2.2, 3.0, 2.9, 1.4, 3.9)),
    "3B PPO, baseline": (60.3, 3.8, (60.6, 71.7, 55.8, 54.3, 65.7, 24.1, 40.8), (6.4, 9.0, 2.6, 2.9, 1.5, 1.7, 4.3)),
    "3B PPO": (65.4, 3.2, (68.7, 75.5, 66.3, 57.4, 67.4, 24.1, 41.6), (5.1, 6.9, 2.2, 2.3, 1.4, 1.2, 3.4)),
    "3B-Instruct PPO, baseline": (59.3, 6.1, (60.9, 70.1, 57.0, 52.0, 63.0, 24.3, 37.6), (8.6, 13.5, 5.6, 4.2, 1.8, 3.9, 12.8)),
    "3B-Instruct PPO": (64.1, 4.9, (65.6, 73.9, 62.1, 55.6, 69.6, 26.0, 32.8), (6.0, 11.0, 3.9, 4.5, 2.5, 2.8, 11.5)),
    "7B-Instruct GRPO, baseline": (61.2, 5.2, (62.4, 74.4, 57.3, 54.8, 64.2, 25.3, 49.6), (5.3, 7.4, 2.0, 3.5, 0.9, 3.6, 8.7)),
    "7B-Instruct GRPO": (67.2, 4.3, (71.2, 76.3, 63.2, 62.4, 71.7, 34.1, 52.8), (4.1, 5.4, 1.3, 1.8, 0.3, 1.5, 4.8)),
    "7B-Instruct PPO, baseline": (53.3, 7.6, (55.6, 67.5, 43.5, 49.4, 58.5, 26.6, 44.0), (11.6, 19.8, 6.1, 7.4, 2.7, 8.5, 19.6)),
    "7B-Instruct PPO": (64.5, 6.2, (66.2, 75.7, 58.4, 59.9, 66.2, 34.3, 52.0), (10.4, 14.5, 4.6, 5.6, 2.1, 5.9, 13.4)),
    "over-search only": (58.8, 4.9, (61.9, 66.9, 54.9, 52.2, 65.4, 25.5, 39.2), (6.0, 11.0, 3.9, 4.5, 2.5, 2.8, 11.5)),
    "under-search only": (63.3, 6.6, (63.7, 74.1, 60.6, 55.9, 67.9, 28.4, 40.8), (8.2, 15.6, 5.9, 5.3, 2.7, 3.1, 6.4)),
    "lambda_p 0.2": (59.6, 5.5, (61.9, 71.2, 56.8, 53.7, 62.2, 25.4, 31.2), (7.4, 11.4, 3.7, 4.4, 2.3, 3.3, 12.1)),
    "lambda_p 0.6": (62.5, 5.2, (66.6, 74.4, 60.5, 55.5, 64.4, 25.6, 38.4), (9.3, 13.1, 4.1, 3.3, 1.3, 2.2, 6.3)),
}  # fmt: skip
# ProGraph-R1, table 1: EM of 2Wiki, HotpotQA, MuSiQue and NQ, each of 128 questions, and the average.
PROGRAPH = {
    "Graph-R1, 3B": ((50.00, 50.78, 32.81, 30.47), 41.02),
    "ProGraph-R1, 3B": ((55.47, 55.47, 37.50, 34.38), 45.71),
    "Search-R1, 3B": ((31.25, 38.28, 3.91, 24.22), 24.42),
    "R1-Searcher, 3B": ((13.28, 35.94, 7.81, 24.22), 20.31),
    "Graph-R1, 7B": ((55.47, 57.03, 36.72, 33.59), 45.70),
    "ProGraph-R1, 7B": ((59.38, 60.94, 39.84, 35.94), 49.03),
    "Search-R1, 7B": ((36.72, 44.53, 14.84, 32.03), 32.03),
    "R1-Searcher, 7B": ((27.34, 39.84, 10.16, 32.03), 27.34),
}  # fmt: skip


def averages(
    scores: tuple[float, ...], counts: tuple[int, ...], osr: tuple[float, ...] = ()
) -> dict[str, dict]:
    """Both averages of a policy with these scores in each question, and a thousand searches."""
    outcomes, judged = [], {}
    for dataset, (score, count) in enumerate(zip(scores, counts, strict=True)):
        for number in range(count):
            name = f"{dataset}-{number}"
            outcomes.append(outcome(name, f"set {dataset}", score / 100))
            if osr:
                over = round(10 * osr[dataset])
                judged[name] = SearchErrors(VerdictCounts(over, 1000 - over))
    rows = metrics_rows("p", "test", outcomes, {}, resamples=2, seed=0, judged=judged or None)
    return {row["dataset"]: row for row in rows}


@pytest.fixture(scope="module")
def hiprag() -> dict[str, dict[str, dict]]:
    """Both averages of every row of table 2, over a fortieth of its questions."""
    counts = tuple(count // 40 for count in QUESTIONS)
    return {name: averages(cem, counts, osr) for name, (_, _, cem, osr) in HIPRAG.items()}


def test_hiprags_average_cem_is_over_questions(hiprag: dict[str, dict[str, dict]]) -> None:
    """All rows but one are within .15 of table 2; the average over data sets is 4 to 9.2 lower."""
    off = {name: 100 * hiprag[name][ALL_QUESTIONS]["cem"] - HIPRAG[name][0] for name in HIPRAG}
    assert [name for name, by in off.items() if abs(by) > 0.15] == ["7B-Instruct PPO"]
    lower = [100 * (row[ALL_QUESTIONS]["cem"] - row[ALL]["cem"]) for row in hiprag.values()]
    assert min(lower) > 3.9
    assert max(lower) < 9.3


def test_hiprags_average_osr_is_over_steps(hiprag: dict[str, dict[str, dict]]) -> None:
    """Its counts of steps are not published; as many a question reads within .35 on average.

    Two rows are left out: those of the 7B model with GRPO, whose average (4.3) is not that of their
    data sets (2.2 over steps, 2.7 over data sets), and its baseline.
    """
    rows = [name for name in HIPRAG if not name.startswith("7B-Instruct GRPO")]
    errors = {
        average: [abs(100 * hiprag[name][average]["osr"] - HIPRAG[name][1]) for name in rows]
        for average in (ALL_QUESTIONS, ALL)
    }
    means = {average: sum(found) / len(rows) for average, found in errors.items()}
    assert means[ALL_QUESTIONS] < 0.4 < means[ALL]


@pytest.mark.parametrize("name", PROGRAPH)
def test_prographs_average_is_over_data_sets_of_128_questions(name: str) -> None:
    scores, published = PROGRAPH[name]
    row = averages(scores, (128,) * 4)[ALL]
    assert 100 * row["em"] == pytest.approx(published, abs=0.011)
