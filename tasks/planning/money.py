"""Requests to endpoints, their tokens and their cost, by the same declarations as GPU hours.

Input: the tasks of a run and a `Clock`. Output: `Asked` of every endpoint of a task, and a sentence
for each paid endpoint without a ceiling (`Endpoint.unbounded`).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

from tasks.base import StageTask
from tasks.opened import Opened, Remote
from tasks.planning.clock import Clock

_Count = Callable[[float, float, float], float]  # of calls, tokens read and tokens written
_SPARE = 2  # a proposed ceiling in multiples of what is expected


@dataclass(frozen=True)
class Asked:
    """Requests of a stage to one endpoint; ``read`` and ``written`` are tokens."""

    stage: str
    remote: Remote
    calls: float
    read: float
    written: float

    @property
    def cost(self) -> float | None:
        """In the currency of the prices; None without prices."""
        prices = self.remote.settings.prices
        cost = (self.read * prices.prompt + self.written * prices.completion) / 1e6
        return cost if prices.prompt or prices.completion else None

    @property
    def expected(self) -> float:
        """The cost, or without prices the tokens."""
        return self.read + self.written if self.cost is None else self.cost

    def joined(self, other: Asked) -> Asked:
        """Both together."""
        amounts = {
            name: getattr(self, name) + getattr(other, name)
            for name in ("calls", "read", "written")
        }
        return replace(self, **amounts)


class _Meter(Clock):
    """Counts what one endpoint is asked, in the place of the GPU seconds of engines."""

    def __init__(self, clock: Clock, remote: Remote, count: _Count) -> None:
        super().__init__(clock.sizes)
        self._remote, self._count = remote, count

    def answer(
        self, opened: Opened, read: float, written: float, *, calls: float = 1, repeated: float = 0
    ) -> float:
        if opened != self._remote:
            return 0.0
        thoughts = self.rates.thinking_share * self._remote.settings.thinking_tokens
        return self._count(calls, read + calls * repeated, written + calls * thoughts)

    def encoding(self, *_: object) -> float:
        return 0.0

    def training(self, *_: object) -> float:
        return 0.0


def asked(task: StageTask, clock: Clock) -> Iterator[Asked]:
    """What a task asks of its endpoints."""
    for one in task.opens():
        if isinstance(one, Remote):
            amounts = (
                task.work(_Meter(clock, one, count)).gpu_seconds
                for count in (lambda c, r, w: c, lambda c, r, w: r, lambda c, r, w: w)
            )
            yield Asked(task.whole, one, *amounts)


def totals(found: Iterable[Asked]) -> list[Asked]:
    """The requests over all rounds and policies, by stage, endpoint and model, if there are any."""
    joined: dict[tuple[str, str, str], Asked] = {}
    for one in found:
        key = (one.stage, one.remote.key, one.remote.settings.model)
        joined[key] = joined[key].joined(one) if key in joined else one
    return [one for one in joined.values() if one.calls]


def ceiling_faults(found: Iterable[Asked]) -> Iterator[str]:
    """A sentence for each paid endpoint without a ceiling, with a ceiling for its largest stage."""
    for key, one in _largest(found).items():
        settings, proposed = one.remote.settings, max(1, _rounded(_SPARE * one.expected))
        if not settings.unbounded:
            continue
        if one.cost is not None:
            yield (
                f"{key} has prices and no ceiling, and {one.stage} is expected to cost "
                f"{one.cost:,.2f}; set {key}.cost_ceiling, for example to {proposed}"
            )
        else:
            yield (
                f"{key}.base_url is a public address, which may cost money, and has no ceiling; "
                f"set {key}.prices and cost_ceiling, or {key}.token_ceiling, for example to "
                f"{proposed} ({one.stage} is expected to take {one.expected:,.0f} tokens)"
            )


def money_lines(found: Sequence[Asked]) -> Iterator[str]:
    """The requests and their cost, and a sentence for each ceiling that a stage would reach."""
    if not found:
        return
    costs = [one.cost for one in found if one.cost is not None]
    parts = [f"cost about {sum(costs):,.2f}"] * bool(costs)
    parts += ["price unknown (set prices)"] * (len(costs) < len(found))
    yield (
        f"about {sum(one.calls for one in found):,.0f} requests to endpoints, {', '.join(parts)}; "
        "computed and not measured, without answers in the cache"
    )
    for key, one in _largest(found).items():
        settings = one.remote.settings
        for name, amount in (("cost_ceiling", one.cost), ("token_ceiling", one.read + one.written)):
            ceiling = getattr(settings, name)
            if ceiling is not None and amount is not None and ceiling < amount:
                yield (
                    f"{key}.{name} is {ceiling:,}, and {one.stage} is expected to take "
                    f"{amount:,.0f}; it would stop there"
                )


def _largest(found: Iterable[Asked]) -> dict[str, Asked]:
    """By the setting of each endpoint the requests of the task that takes most."""
    return {one.remote.key: one for one in sorted(found, key=lambda one: one.expected)}


def _rounded(amount: float) -> int:
    """A number of two digits and zeros that is not below the amount."""
    step: int = 10 ** max(0, len(str(math.ceil(amount))) - 2)
    return math.ceil(amount / step) * step
