"""Section "Rewards" of the report: every reward term over the trajectories of each round.

Input: the directories of the stages ``score``. Output: the variables of the section, with means of right
and of wrong answers and the AUC of each term against exact match. A term with an AUC of 0.5 says nothing
about the answer; terms of the process need not.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

from pipeline.core.answer_metrics import exact_match
from pipeline.core.input_files import iterate_parquet, parse_json
from pipeline.evaluation import plots
from pipeline.evaluation.term_counts import TermCounts
from pipeline.stages.report_data import rounds_of

_TWO_VALUED = ("answer", "format")  # their means suffice


def values(inputs: Mapping[str, Path], titles: Mapping[str, str]) -> dict[str, Any]:
    """Template variables; ``titles`` are those of the method's terms, by term."""
    terms = reward_terms(inputs, titles)
    last = max(terms, default=0)
    return {
        "reward_rounds": {n: plots.series_color(n - 1, last) for n in terms},
        "reward_means": {
            title: {n: of_round[term].mean() for n, of_round in terms.items()}
            for term, title in titles.items()
        },
        "reward_answers": {
            title: {n: _against_answers(term, of_round[term]) for n, of_round in terms.items()}
            for term, title in titles.items()
        },
        "reward_figures": {
            title: plots.histograms(
                {n - 1: of_round[term].distribution() for n, of_round in terms.items()}, last
            )
            for term, title in titles.items()
            if terms and term not in _TWO_VALUED
        },
    }


def _against_answers(term: str, counts: TermCounts) -> dict[str, Any]:
    """Numbers and means of right and of wrong answers, and the AUC; None for what is not measured."""
    return {
        "term": term,
        "right": counts.mean(True),
        "wrong": counts.mean(False),
        "n_right": counts.number(True),
        "n_wrong": counts.number(False),
        "auc": counts.auc(),
    }


def reward_terms(
    inputs: Mapping[str, Path], terms: Collection[str]
) -> dict[int, dict[str, TermCounts]]:
    """The values of every reward term over the trajectories of each round.

    TeaRAG eq. 5 to 13, HiPRAG eq. 1, and ProGraph-R1 eq. 11 to 15 as means over the steps of a
    trajectory. A term that is not measured has no values.
    """
    result = {}
    for number, directory in rounds_of(inputs, "score").items():
        counts = {term: TermCounts() for term in terms}
        path = directory / "trajectories.parquet"
        rows = iterate_parquet(path, ["rewards", "answer", "answers"])
        for place, row in enumerate(rows, start=1):
            if row["rewards"] is None:  # a retrieval error ended it
                continue
            rewards = parse_json(row["rewards"], path, place)
            right = exact_match(row["answer"], row["answers"]) == 1
            for term, of_term in counts.items():
                if rewards.get(term) is not None:
                    of_term.add(rewards[term], right)
        result[number] = counts
    return result
