"""The cost of requests to endpoints, and their ceilings.

Input: the requests of the stages (`pipeline.engine.opened.Requests`). Output: their cost, and a
sentence for each paid endpoint without a ceiling (`Endpoint.unbounded`).
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace

from pipeline.engine.opened import Requests

_SPARE = 2  # a proposed ceiling in multiples of what is expected


def totals(found: Iterable[Requests]) -> list[Requests]:
    """The requests over all rounds and policies, by stage, endpoint and model, if there are any."""
    joined: dict[tuple[str, str, str], Requests] = {}
    for one in found:
        key = (one.stage, one.remote.key, one.remote.settings.model)
        before = joined.get(key, replace(one, calls=0, read=0, written=0))
        joined[key] = replace(
            one,
            calls=before.calls + one.calls,
            read=before.read + one.read,
            written=before.written + one.written,
        )
    return [one for one in joined.values() if one.calls]


def ceiling_faults(found: Iterable[Requests]) -> Iterator[str]:
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


def money_lines(found: Sequence[Requests]) -> Iterator[str]:
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


def _largest(found: Iterable[Requests]) -> dict[str, Requests]:
    """By the setting of each endpoint the requests of the task that takes most."""
    return {one.remote.key: one for one in sorted(found, key=lambda one: one.expected)}


def _rounded(amount: float) -> int:
    """A number of two digits and zeros that is not below the amount."""
    step: int = 10 ** max(0, len(str(math.ceil(amount))) - 2)
    return math.ceil(amount / step) * step
