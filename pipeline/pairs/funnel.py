"""The rejection funnel: the number of trajectories of every data set in every bin of the pairing.

Input: the pairing outcome of every trajectory. Output: counts, and a Markdown table. The funnel
shows why a round has few pairs: no good trajectories, no bad ones, or duplicates.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from pipeline.pairs.select import BINS, Bin


@dataclass(slots=True)
class PairingOutcome:
    """The bin of one trajectory; ``partner`` is the other trajectory of its (first) pair."""

    trajectory_id: str
    question_id: str
    dataset: str
    bin: Bin
    partner: str | None = None


class Funnel:
    """Counts of pairing outcomes.

    ``counts`` is ``{"bins": {bin: count}, "datasets": {dataset: {bin: count}}}``; every bin is
    listed.
    """

    def __init__(self) -> None:
        self._bins: dict[str, int] = dict.fromkeys(BINS, 0)
        self._datasets: dict[str, dict[str, int]] = {}

    @property
    def counts(self) -> dict[str, Any]:
        return {"bins": self._bins, "datasets": self._datasets}

    def counted(self, outcomes: Iterable[PairingOutcome]) -> Iterator[PairingOutcome]:
        """The outcomes as they come, each counted when it is taken."""
        for outcome in outcomes:
            of_dataset = self._datasets.setdefault(outcome.dataset, dict.fromkeys(BINS, 0))
            of_dataset[outcome.bin] += 1
            self._bins[outcome.bin] += 1
            yield outcome


def table(counts: Mapping[str, Any]) -> str:
    """The funnel as a Markdown table, one column per data set."""
    names = list(counts["datasets"])
    rows = [["bin", "meaning", *names, "all"]]
    for name, meaning in BINS.items():
        per_dataset = [str(counts["datasets"][dataset][name]) for dataset in names]
        rows.append([name, meaning, *per_dataset, str(counts["bins"][name])])
    rows.insert(1, ["---", "---", *["---:"] * (len(names) + 1)])
    return "\n".join("| " + " | ".join(row) + " |" for row in rows)
