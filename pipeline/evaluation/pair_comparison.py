"""Compare the preference pairs that runs train on: their kinds by round, and what they choose in common.

Input: the pairs of every round of runs. Output: rows of plain values for `pipeline.evaluation.run_comparison`.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean, stdev
from typing import Any

ALL_KINDS = "all"


@dataclass(frozen=True)
class RoundPairs:
    """The pairs of one round of one run.

    Attributes:
        kinds: the number of pairs of each kind, such as "format".
        chosen: the ids of the chosen trajectories.
        samples: identifies the trajectories that were sampled, from which pairs were chosen; None where
            that is not known. The ids of trajectories do not tell: they have the policy and the number of
            the sample, and neither the seed nor the settings of sampling and retrieval.
    """

    kinds: Counter[str]
    chosen: frozenset[str]
    samples: str | None


PairsByRound = Mapping[int, RoundPairs]


def pair_rows(label: str, runs: Sequence[PairsByRound]) -> Iterable[dict[str, Any]]:
    """For each round and kind: ``mean``, ``spread`` (None for one run) and ``values`` of the numbers of pairs.

    Kind "all" counts every pair. Rounds that not all runs have are left out.
    """
    rounds = set.intersection(*(set(run) for run in runs))
    for number in sorted(rounds):
        kinds = dict.fromkeys(kind for run in runs for kind in sorted(run[number].kinds))
        for kind in (ALL_KINDS, *kinds):
            values = [_count(run[number].kinds, kind) for run in runs]
            yield {
                "group": label, "round": number, "kind": kind, "mean": fmean(values),
                "spread": stdev(values) if len(values) > 1 else None, "values": values,
            }  # fmt: skip


def _count(kinds: Counter[str], kind: str) -> int:
    return kinds.total() if kind == ALL_KINDS else kinds[kind]


def shared_rows(
    first: tuple[str, Sequence[PairsByRound]], other: tuple[str, Sequence[PairsByRound]]
) -> Iterable[dict[str, Any]]:
    """The share of the first group's chosen trajectories that the other group chooses too, by round.

    Each run is compared with those of the other group that chose from the same sampled trajectories; a
    round is left out where a run has none. ``values`` holds the share of each run, averaged over the runs
    that it is compared with, and ``mean`` their mean.
    """
    for number in sorted({number for run in first[1] for number in run}):
        partners: defaultdict[str | None, list[RoundPairs]] = defaultdict(list)
        for run in other[1]:
            if number in run and run[number].samples is not None:
                partners[run[number].samples].append(run[number])
        pairs = [run[number] for run in first[1] if number in run and run[number].chosen]
        if not pairs or not all(one.samples in partners for one in pairs):
            continue
        values = [
            fmean(len(one.chosen & twin.chosen) / len(one.chosen) for twin in partners[one.samples])
            for one in pairs
        ]
        yield {
            "before": first[0], "after": other[0], "round": number, "mean": fmean(values),
            "values": values,
        }  # fmt: skip
