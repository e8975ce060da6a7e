"""Distributions and the funnel as bars, each a link to the rows that it counts.

Input: counts. Output: bars with their share of the longest one. The templates draw them as inline SVG
with attributes only, which the content policy allows.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from pipeline.browse.queries import Bar


@dataclass(frozen=True)
class BarView:
    """One bar; ``share`` is its length in percent of the longest."""

    label: str
    count: int
    share: float
    address: str
    title: str = ""


def category_bars(
    counts: Mapping[str, int],
    address: Callable[[str], str],
    meanings: Mapping[str, str] | None = None,
) -> list[BarView]:
    """One bar for each value."""
    longest = max(counts.values(), default=0)
    return [
        BarView(name, count, _share(count, longest), address(name), (meanings or {}).get(name, ""))
        for name, count in counts.items()
    ]


def histogram_bars(bars: Sequence[Bar], address: Callable[[float, float], str]) -> list[BarView]:
    """One bar for each range of a number."""
    longest = max((bar.count for bar in bars), default=0)
    return [
        BarView(
            _range(bar), bar.count, _share(bar.count, longest), address(bar.low, bar.high)
        )
        for bar in bars
    ]  # fmt: skip


def _share(count: int, longest: int) -> float:
    return round(100 * count / longest, 2) if longest else 0.0


def _range(bar: Bar) -> str:
    return f"{bar.low:.3g}" if bar.low == bar.high else f"{bar.low:.3g} to {bar.high:.3g}"
