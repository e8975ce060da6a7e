"""Pairs of many questions, one question in memory at a time.

Input: trajectories or candidates, grouped by question as the stage ``sample`` writes them. Output:
the pairs of each question, and the pairing outcome of each of its trajectories. Memory: one
question, and a digest of every trajectory id and question id (about 100 bytes each) to detect
repetitions.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import groupby
from pathlib import Path
from typing import TypeVar

from pipeline.config.policy import Pairs
from pipeline.core.content_cache import digest
from pipeline.core.errors import InputError
from pipeline.pairs.funnel import PairingOutcome
from pipeline.pairs.select import PAPER, Candidate, CandidatePair, select

T = TypeVar("T")


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
