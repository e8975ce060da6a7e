"""The passages that trajectories retrieved, with the places that they come from."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import islice
from pathlib import Path
from typing import TypedDict

from pipeline.core.records import ContextItem, Trajectory
from pipeline.knowledge.retrieval.origins import passage_id, passages

_BATCH = 512  # trajectories whose passages are looked up at once


class Source(TypedDict):
    """A passage: its id and title, and a file, the page of a PDF, or an address."""

    id: str
    title: str
    source: str


def items_of(trajectory: Trajectory) -> list[ContextItem]:
    """The items that all steps retrieved, each once, in their order."""
    items = (item for step in trajectory.steps for item in step.context)
    return list({(item.kind, item.id, item.text): item for item in items}.values())


def with_sources(
    trajectories: Iterable[Trajectory], corpus: Path
) -> Iterator[tuple[Trajectory, dict[str, Source]]]:
    """Each trajectory, and the passages of its items by their id.

    ``corpus`` is the output of the stage. Raises InputError when it has no readable table.
    """
    waiting = iter(trajectories)
    while batch := list(islice(waiting, _BATCH)):
        items = [item for trajectory in batch for item in items_of(trajectory)]
        found = {
            chunk.id: Source(id=chunk.id, title=chunk.title, source=chunk.source)
            for chunk in passages(items, corpus)
        }
        for trajectory in batch:
            ids = map(passage_id, items_of(trajectory))
            yield trajectory, {name: found[name] for name in ids if name in found}
