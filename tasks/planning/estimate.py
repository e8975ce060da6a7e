"""One stage of a plan, and its expected work: an earlier output scaled to the amount of this run."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from tasks.planning.machine import is_gpu
from tasks.planning.measured import Measured


@dataclass(frozen=True)
class Estimate:
    """What a stage is expected to do, or has done.

    Attributes:
        state: done and reused stages do not run.
        directory: where the output is, or will be.
        needs: labels of the stages whose output this one waits for.
        seconds: wall seconds, from the start of the stage's process to its end; None: unknown.
        gpu_seconds: ``seconds`` times the number of GPUs; None: unknown.
        gpus: GPUs that it takes while it runs, where they are counted.
        threads: CPU threads that it takes.
        amounts: rows and work, by name; names that are missing are unknown.
        cost: money for endpoints, in the currency of their prices; None: unknown.
        size: bytes of the output on the disk; None: unknown.
        source: the run and stage that the estimate goes by, or None.
        note: what to know about it, such as another machine.
    """

    label: str
    state: Literal["done", "reused", "run"]
    directory: str
    needs: tuple[str, ...] = ()
    seconds: float | None = None
    gpu_seconds: float | None = None
    gpus: int = 0
    threads: int = 0
    amounts: Mapping[str, float] = field(default_factory=dict)
    cost: float | None = None
    size: float | None = None
    source: str | None = None
    note: str = ""


@dataclass(frozen=True)
class Prices:
    """Prices of one endpoint per million tokens, and the name of its tokens in a stage's work."""

    name: str
    prompt: float
    completion: float


def scaled_seconds(found: Measured, ratio: float) -> float:
    """Wall seconds of ``ratio`` times the work of an output: its start is not repeated."""
    start = found.start_seconds
    return found.launch_seconds + start + (found.seconds - start) * ratio


def scaled_amounts(found: Measured, ratio: float) -> dict[str, float]:
    """The amounts of an output times ``ratio``, without its cost, which has prices of its own."""
    return {name: value * ratio for name, value in found.amounts.items() if name != "cost"}


def cost_of(amounts: Mapping[str, float], prices: tuple[Prices, ...]) -> float | None:
    """The cost of the tokens in ``amounts``; None when the tokens of an endpoint are unknown."""
    total = 0.0
    for price in prices:
        prompt = amounts.get(f"{price.name}.prompt_tokens")
        completion = amounts.get(f"{price.name}.completion_tokens")
        if prompt is None or completion is None:
            return None
        total += (prompt * price.prompt + completion * price.completion) / 1e6
    return total


def gpu_seconds(found: Measured, seconds: float, gpus: int) -> float:
    """Seconds times GPUs for a stage that was measured on a GPU, else 0."""
    return seconds * gpus if is_gpu(found.device) else 0.0
