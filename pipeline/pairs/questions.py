"""Pairs of many questions, one question in memory at a time.

Input: trajectories or candidates, grouped by question as the stage ``sample`` writes them. Output:
the pairs of each question, the pairing outcome of each of its trajectories, and the rejection
funnel: the number of trajectories of every data set with every outcome. It shows why a round has
few pairs: no good trajectories, no bad ones, or duplicates. Memory: one
question, and a digest of every trajectory id and question id (about 100 bytes each) to detect
repetitions.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path
from typing import Any, TypeVar

from pipeline.config.policy import Pairs
from pipeline.core.content_cache import digest
from pipeline.core.errors import InputError
from pipeline.pairs.select import BINS, PAPER, Bin, Candidate, CandidatePair, select

T = TypeVar("T")


@dataclass(slots=True)
class PairingOutcome:
    """The bin of one trajectory; ``partner`` is the other trajectory of its (first) pair."""

    trajectory_id: str
    question_id: str
    dataset: str
    bin: Bin
    partner: str | None = None


def by_question(
    items: Iterable[T], question_of: Callable[[T], str], source: Path | str
) -> Iterator[tuple[str, list[T]]]:
    """(question id, its items) in order.

    ``source`` names the input in messages. Raises InputError when the items of a question do not
    follow each other.
    """
    seen: set[bytes] = set()
    for question_id, rows in groupby(enumerate(items, start=1), lambda row: question_of(row[1])):
        group = list(rows)
        if digest(question_id) in seen:
            raise InputError.at(
                source,
                f"the trajectories of question {question_id} do not follow each other; sort the "
                "file by question_id, or rerun the stage that wrote it",
                group[0][0],
            )
        seen.add(digest(question_id))
        yield question_id, [item for _, item in group]


def pair_questions(
    questions: Iterable[tuple[str, Sequence[Candidate]]], thresholds: Pairs = PAPER
) -> Iterator[tuple[list[CandidatePair], list[PairingOutcome]]]:
    """The pairs of each question, and the outcomes of its trajectories in their order.

    Raises InputError when two trajectories share an id, or when trajectories of a question were
    scored with different rewards.
    """
    seen: set[bytes] = set()
    for question_id, candidates in questions:
        outcomes: dict[str, PairingOutcome] = {}
        try:
            selected, bins = select(candidates, thresholds)
        except InputError as error:
            raise InputError(f"question {question_id}: {error}") from None
        for candidate in candidates:
            name = candidate.id
            if digest(name) in seen:
                raise InputError(f"two trajectories are called {name}; ids must be unique")
            seen.add(digest(name))
            outcomes[name] = PairingOutcome(name, question_id, candidate.dataset, bins[name])
        for pair in selected:
            chosen, rejected = outcomes[pair.chosen.id], outcomes[pair.rejected.id]
            chosen.partner = chosen.partner or pair.rejected.id
            rejected.partner = pair.chosen.id
        yield selected, list(outcomes.values())


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
