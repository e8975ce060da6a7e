"""Metrics of trajectories, averaged per policy and data set.

Input: trajectories with their gold answers. Output: one `Outcome` per question, and the rows of
``metrics.json``: EM, F1, CEM, words of the answer, share of well-formed trajectories, steps, tokens
and seconds, with bootstrap intervals, and the counts of failure modes. TeaRAG (arXiv 2511.05385)
5.1.1 and tables 6 to 10. The row ``dataset: "all"`` is the average over data sets, so every data
set has equal weight, as in TeaRAG's tables; ``dataset: "all-questions"`` is the average over the
questions of all data sets, as HiPRAG's (arXiv 2510.07794, table 2) are.
If the questions are of both kinds, "single-hop" and "multi-hop" are such averages too (figure 2c).
If their numbers of hops differ, "1-hop", "2-hop", … are averages over data sets too, of
the questions with that number.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from operator import attrgetter
from typing import Any, TypeVar

import numpy as np

from pipeline.core.answer_metrics import (
    ALL,
    ALL_QUESTIONS,
    HOP_AVERAGES,
    CoverMatch,
    answer_measures,
    answer_words,
    hop_count,
    hop_count_name,
)
from pipeline.core.records import HopType, Question, Stop, Trajectory
from pipeline.evaluation.compare import bootstrap_interval
from pipeline.evaluation.failures import FailureMode, diagnose
from pipeline.judges.search_errors import SearchErrors

RESAMPLES = 1000  # of the bootstrap
# Measures with one number per question; rows have their mean and its interval.
MEASURES = (
    "em", "f1", "cem", "words", "format_ok", "steps", "searches", "thinking", "retrieved", "total"
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Outcome:
    """Scores and costs of one trajectory.

    Attributes:
        part: the question's part of its split, such as "unseen".
        em, f1, cem: exact match, F1 and cover exact match of the answer, from 0 to 1.
        words: number of words of the answer; 0 without one.
        searches: number of retrieval calls.
        thinking, retrieved: tokens that the model wrote and tokens that retrieval inserted.
        failure_mode, failed_hop, hops: the diagnosis, with hops counted from 1.
        hop: the kind of the question.
        sampled: measures of several trajectories, in place of these and more (`over_samples`).
    """

    question_id: str
    dataset: str
    part: str | None
    em: float
    f1: float
    cem: float
    words: int
    format_ok: bool
    steps: int
    searches: int
    thinking: int
    retrieved: int
    stop: Stop
    failure_mode: FailureMode
    failed_hop: int | None
    hops: int
    hop: HopType
    sampled: dict[str, float] = field(default_factory=dict)

    def values(self) -> dict[str, float]:
        """The numbers by measure: `MEASURES`, then those that ``sampled`` adds."""
        own = {name: float(getattr(self, name)) for name in MEASURES[:-1]}
        return own | {"total": float(self.thinking + self.retrieved)} | self.sampled


def measure(
    trajectory: Trajectory,
    part: str | None,
    question: Question | None = None,
    cem: CoverMatch = "words",
) -> Outcome:
    """Measure one trajectory; ``part`` is the question's part of its split ("unseen"), if any.

    A trajectory without an answer scores 0, but its steps and tokens still count. ``question`` adds
    its decomposition to the gold annotations that determine the failure mode. ``cem``: see
    `cover_exact_match`.
    """
    measures: dict[str, Any] = answer_measures(trajectory.answer, trajectory.answers, cem)
    diagnosis = diagnose(trajectory, question)
    return Outcome(
        question_id=trajectory.question_id,
        dataset=trajectory.dataset,
        part=part,
        **measures,
        words=answer_words(trajectory.answer),
        format_ok=trajectory.format_ok,
        steps=len(trajectory.steps),
        searches=len(trajectory.tokens.per_retrieval),
        thinking=trajectory.tokens.thinking,
        retrieved=trajectory.tokens.retrieved,
        stop=trajectory.stop,
        failure_mode=diagnosis.failure_mode,
        failed_hop=diagnosis.hop,
        hops=diagnosis.hops,
        hop=trajectory.hop,
    )


def metrics_rows(
    policy: str,
    split: str,
    outcomes: Sequence[Outcome],
    seconds: Mapping[str, float],
    *,
    seed: int,
    judged: Mapping[str, SearchErrors] | None = None,
    resamples: int = RESAMPLES,
) -> list[dict[str, Any]]:
    """The metrics rows of one policy: each data set, the averages, then the same for each part.

    The last average is the row "all".

    Averages by number of hops are there for the whole split only. Rows of a part have a ``split``
    such as "test/unseen". ``seconds`` cover the whole evaluation, so they are set in the row "all"
    of the whole split and None elsewhere. ``resamples`` and ``seed`` configure the bootstrap.
    ``judged`` holds the judge's verdict counts by question id; without it the over-search and
    under-search rates are None.
    """
    result = _rows_of(policy, split, outcomes, resamples, seed, judged)
    result[-1]["seconds"] = dict(seconds)
    for part in dict.fromkeys(outcome.part for outcome in outcomes if outcome.part):
        inside = [outcome for outcome in outcomes if outcome.part == part]
        result += _rows_of(policy, f"{split}/{part}", inside, resamples, seed, judged)
    return result


def average_row(split: str, outcomes: Sequence[Outcome], average: str, seed: int) -> dict[str, Any]:
    """The row ``average`` ("all" or "all-questions") of `metrics_rows`, without a policy."""
    groups = grouped(outcomes, lambda outcome: outcome)[average]
    return _row("", average, split, groups, RESAMPLES, seed, None)


Item = TypeVar("Item")


def grouped(items: Iterable[Item], of: Callable[[Item], Outcome]) -> dict[str, list[list[Item]]]:
    """The items of each data set and average, in groups of equal weight; ``of`` gives outcomes.

    The averages by kind of question are there if both kinds are, and those by number of hops if
    there are several numbers.
    """
    every = list(items)
    datasets: dict[str, list[Item]] = {}
    for item in every:
        datasets.setdefault(of(item).dataset, []).append(item)
    parts: dict[str, tuple[str, Any]] = {}
    if {of(item).hop for item in every} >= HOP_AVERAGES.keys():
        parts |= {name: ("hop", hop) for hop, name in HOP_AVERAGES.items()}
    counts = sorted({of(item).hops for item in every})
    if len(counts) > 1:
        parts |= {hop_count_name(count): ("hops", count) for count in counts}
    result = {name: [group] for name, group in datasets.items()}
    for name, (field_name, value) in parts.items():
        inside = (
            [one for one in group if getattr(of(one), field_name) == value]
            for group in datasets.values()
        )
        result[name] = [group for group in inside if group]
    return result | {ALL_QUESTIONS: [every], ALL: list(datasets.values())}


def _rows_of(
    policy: str,
    split: str,
    outcomes: Sequence[Outcome],
    resamples: int,
    seed: int,
    judged: Mapping[str, SearchErrors] | None,
) -> list[dict[str, Any]]:
    return [
        _row(policy, name, split, groups, resamples, seed, judged)
        for name, groups in grouped(outcomes, lambda outcome: outcome).items()
        if "/" not in split or hop_count(name) is None
    ]


def _row(
    policy: str,
    dataset: str,
    split: str,
    groups: Sequence[Sequence[Outcome]],
    resamples: int,
    seed: int,
    judged: Mapping[str, SearchErrors] | None,
) -> dict[str, Any]:
    """One row; the groups of ``groups``, such as data sets, get equal weight."""
    measures = list(groups[0][0].values())
    samples = [np.array([[*outcome.values().values()] for outcome in group]) for group in groups]
    mean = dict(zip(measures, np.mean([s.mean(axis=0) for s in samples], axis=0), strict=True))
    bounds_M2 = bootstrap_interval(samples, resamples=resamples, seed=seed)
    return {
        "policy": policy,
        "dataset": dataset,
        "split": split,
        "n": sum(len(sample) for sample in samples),
        **{name: float(mean[name]) for name in ("em", "f1", "cem", "words", "format_ok", "steps")},
        **{name: float(mean[name]) for name in measures[len(MEASURES) :]},
        "tokens": {
            **{name: float(mean[name]) for name in ("thinking", "retrieved", "total")},
            "per_retrieval": _per_retrieval(samples),
        },
        **_search_decisions(groups, judged),
        "searches": float(mean["searches"]),
        "seconds": None,
        "ci": {
            name: None if bounds_M2 is None else [float(bound) for bound in bounds_M2[column]]
            for column, name in enumerate(measures)
        },
        "failure_modes": _failure_modes(groups),
    }


def _search_decisions(
    groups: Sequence[Sequence[Outcome]], judged: Mapping[str, SearchErrors] | None
) -> dict[str, float | None]:
    """Over-search rate, under-search rate and share of unknown verdicts (HiPRAG eq. 2).

    Each is a rate over all steps of a group, averaged over the groups that have such steps; the
    paper's is that of one group with the steps of all questions.
    """
    by_dataset = [
        sum((judged[o.question_id] for o in group if o.question_id in judged), SearchErrors())
        for group in groups
        if judged is not None
    ]
    result: dict[str, float | None] = {}
    columns = {"osr": "over.rate", "usr": "under.rate", "unknown": "unknown_share"}
    for name, attribute in columns.items():
        rates = list(map(attrgetter(attribute), by_dataset))
        measured = [rate for rate in rates if rate is not None]
        result[name] = float(np.mean(measured)) if measured else None
    return result


def _failure_modes(groups: Sequence[Sequence[Outcome]]) -> dict[str, dict[str, float]]:
    """Count and share of each failure mode; shares are averaged over data sets."""
    counts = [Counter(outcome.failure_mode for outcome in group) for group in groups]
    return {
        failure_mode.value: {
            "n": sum(count[failure_mode] for count in counts),
            "share": float(np.mean([count[failure_mode] / count.total() for count in counts])),
        }
        for failure_mode in FailureMode
    }


def _per_retrieval(samples: Sequence[np.ndarray]) -> float | None:
    """Tokens per retrieval call, averaged over the data sets with at least one call."""
    searches, retrieved = MEASURES.index("searches"), MEASURES.index("retrieved")
    sums = [sample.sum(axis=0) for sample in samples]
    ratios = [float(s[retrieved] / s[searches]) for s in sums if s[searches] > 0]
    return float(np.mean(ratios)) if ratios else None
