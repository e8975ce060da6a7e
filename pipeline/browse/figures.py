"""Distributions and the funnel as bars, each a link to the rows that it counts.

Input: counts. Output: bars with their share of the longest one. The templates draw them as inline
SVG with attributes only, which the content policy allows.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from urllib.parse import urlencode

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


@dataclass(frozen=True)
class Cell:
    """A count of a table.

    ``percent`` is its share of the column, ``share`` its share of the longest bar.
    """

    count: int
    percent: float
    share: float
    address: str


def share_table(
    counts: Mapping[str, Mapping[str, int]], meanings: Mapping[str, str], list: str, name: str
) -> dict[str, tuple[str, Sequence[Cell]]]:
    """Meaning and cells of each value that occurs, with bars on one scale.

    ``counts`` has the columns, groups of trajectories or pairs. Cells lead to ``list``, filtered by
    ``name``.
    """
    totals = {group: sum(of_group.values()) for group, of_group in counts.items()}
    shares = {
        value: {
            group: 100 * of_group.get(value, 0) / (totals[group] or 1)
            for group, of_group in counts.items()
        }
        for value in _in_order(counts, meanings)
    }
    longest = max((share for row in shares.values() for share in row.values()), default=0) or 1
    return {
        value: (
            meanings.get(value, ""),
            [
                Cell(
                    counts[group].get(value, 0),
                    share,
                    round(100 * share / longest, 2),
                    f"{list}?{urlencode({'group': group, name: value})}",
                )
                for group, share in row.items()
            ],
        )
        for value, row in shares.items()
    }


def _in_order(counts: Mapping[str, Mapping[str, int]], order: Mapping[str, str]) -> Sequence[str]:
    """The values that occur, in the order of a list of names; other values come last."""
    found = {value for of_group in counts.values() for value in of_group}
    return [value for value in dict.fromkeys([*order, *sorted(found)]) if value in found]


def stacked(counts: Mapping[str, int]) -> Sequence[tuple[str, float, float]]:
    """Name, start and width in percent of each part of a bar."""
    total, start, parts = sum(counts.values()) or 1, 0, []
    for name, count in counts.items():
        if count:
            parts.append((name, round(100 * start / total, 2), round(100 * count / total, 2)))
        start += count
    return parts


def curve(values: Sequence[float]) -> tuple[str, float, float] | None:
    """Points of a line of 100 by 24, and the first and last value; None without two values."""
    if len(values) < 2:
        return None
    low, high = min(values), max(values)
    points = (
        f"{100 * place / (len(values) - 1):.1f},{22 - 20 * (value - low) / ((high - low) or 1):.1f}"
        for place, value in enumerate(values)
    )
    return " ".join(points), values[0], values[-1]


def _share(count: int, longest: int) -> float:
    return round(100 * count / longest, 2) if longest else 0.0


def _range(bar: Bar) -> str:
    return f"{bar.low:.3g}" if bar.low == bar.high else f"{bar.low:.3g} to {bar.high:.3g}"
