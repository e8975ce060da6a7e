"""Which earlier output a stage's estimate goes by: of the same models, and with the nearest settings."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from pipeline.core.input_files import leaves
from pipeline.run.store import StageKey
from tasks.planning.measured import Measured

# An output with other models, or another way of working, says nothing about the time of a stage.
_MODELS = ("base model", "embedder", "model")
_KINDS = (
    "engine.kind", "grammar", "rewards.kind", "graph.source", "hypergraph.source",
    "judges.over.backend", "judges.under.backend",
)  # fmt: skip
_IGNORED = ("seed",)


def nearest(
    key: StageKey,
    store: Path,
    machine: frozenset[str],
    candidates: Iterable[tuple[Measured, float]],
    expected: float,
) -> tuple[Measured, float] | None:
    """The output that is most like the stage of ``key``, with its amount; None when none is.

    ``candidates`` are outputs with the amount of their work, ``expected`` is the amount of this stage,
    and ``machine`` has the names of this machine's devices. Measured on this machine comes first, then
    the number of equal settings, the round, the amount of work, this run's store, and the date.
    """
    fitting = [
        (found, amount)
        for found, amount in candidates
        if amount > 0 and comparable(key, found)
    ]  # fmt: skip

    def distance(candidate: tuple[Measured, float]) -> tuple[float, ...]:
        found, amount = candidate
        return (
            found.resumed,
            found.device not in machine,
            found.stage != key.stage,
            differing(key.settings, found.settings),
            abs((found.round or 0) - (key.round or 0)),
            round(abs(math.log2(max(expected, 1.0) / amount))),
            found.store != store,
            -found.modified,
        )

    return min(fitting, key=distance, default=None)


def comparable(key: StageKey, found: Measured) -> bool:
    """Whether an output was made with the same models and in the same way."""
    for name in _MODELS:
        if name in key.files and name in found.files and key.files[name] != found.files[name]:
            return False
    ours, theirs = dict(leaves(key.settings)), dict(leaves(found.settings))
    return all(ours.get(name) == theirs.get(name) for name in _KINDS)


def differing(ours: Mapping[str, Any], theirs: Mapping[str, Any]) -> int:
    """The number of settings with other values, without seeds."""
    first, second = dict(leaves(ours)), dict(leaves(theirs))
    return sum(
        first.get(name) != second.get(name)
        for name in first.keys() | second.keys()
        if name not in _IGNORED
    )
