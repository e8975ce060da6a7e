"""Settings of single rounds (``per_round``) for the report.

Input: the configuration of the run. Output: one row per setting that differs in a round.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from pipeline.config import Config
from pipeline.core.input_files import leaves


def round_settings(config: Config) -> list[dict[str, Any]]:
    """Rows with ``round``, ``setting`` (dotted), ``value`` and ``run``, the value of the run."""
    of_run = dict(leaves(config.model_dump(mode="json")))
    return [
        {"round": number, "setting": name, "value": value, "run": of_run.get(name)}
        for number in sorted(config.per_round)
        for name, value in leaves(config.of_round(number).model_dump(mode="json"))
        if not name.startswith("per_round") and value != of_run.get(name)
    ]


def continuations(config: Config, rounds: Iterable[int]) -> str:
    """The number of continuations per state, and the number of each round that differs."""
    counts = {number: config.of_round(number).rewards.prograph.continuations for number in rounds}
    if len(set(counts.values())) <= 1:
        return str(next(iter(counts.values()), config.rewards.prograph.continuations))
    return ", ".join(f"{count} (round {number})" for number, count in counts.items())
