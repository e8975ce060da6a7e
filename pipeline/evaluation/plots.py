"""Figures of the report, as SVG that follows the color scheme of the page.

Input: plain numbers. Output: an ``<svg>`` element as text, without scripts, fonts or URLs.
matplotlib draws with placeholder colors, which are then replaced by CSS variables of the page
(``--ink``, ``--muted``, ``--line``, and one per series). A series is identified by its number:
policies and rounds count from 0, and `EM`, `F1` and `SFT` have fixed numbers.
"""

from __future__ import annotations

import hashlib
import io
import re
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

# Placeholder colors that do not occur elsewhere in matplotlib's output.
INK, MUTED, LINE = "#010203", "#010204", "#010205"
_VARIABLES = {INK: "var(--ink)", MUTED: "var(--muted)", LINE: "var(--line)"}
# Series with fixed colors; a run has up to 1,000 rounds.
EM, F1, SFT = 0xFFFE, 0xFFFF, 0xFFFD
_NAMED = {EM: "--em", F1: "--f1", SFT: "--ink"}

Bounds = tuple[float, float] | None


def series_color(number: int, count: int) -> str:
    """CSS color of series ``number``; ``count``: how many ordered series (policies, rounds)."""
    if number in _NAMED:
        return f"var({_NAMED[number]})"
    share = 0 if count < 2 else round(100 * number / (count - 1))
    return f"color-mix(in oklab, var(--last) {share}%, var(--first))"


def learning_curve(
    policies: Sequence[str], curves: Mapping[int, Sequence[tuple[float, Bounds]]], limits: Bounds
) -> str:
    """Line chart of scores in percent over policies.

    ``curves`` maps a series to the score and its interval, both from 0 to 1, for every policy.
    ``limits`` are the ends of the y axis in percent, or None.
    """
    figure, axes = _figure(2.8, 2.2, left=0.36, bottom=0.37)
    positions = np.arange(len(policies))
    for number, points in curves.items():
        values = [100 * value for value, _ in points]
        bounds = [(100 * b[0], 100 * b[1]) if b else (np.nan, np.nan) for _, b in points]
        color = _placeholder(number)
        lower, upper = zip(*bounds, strict=True)
        axes.fill_between(positions, lower, upper, color=color, alpha=0.16, linewidth=0)
        axes.plot(positions, values, color=color, marker="o", markersize=4, linewidth=1.8)
        for x, value in zip(positions, values, strict=True):
            above = number == F1
            axes.annotate(
                f"{value:.1f}", (float(x), value), xytext=(0, 6 if above else -6),
                textcoords="offset points", color=INK, va="bottom" if above else "top",
                ha="center", fontsize=7.5,
            )  # fmt: skip
    # "Policy 0 (SFT)" takes two lines. Text between two dollar signs would be a formula.
    names = [name.replace(" (", "\n(").replace("$", r"\$") for name in policies]
    axes.set_xticks(positions, names)
    axes.set_xlim(-0.35, len(policies) - 0.65)
    if limits:
        axes.set_ylim(*limits)
    axes.margins(y=0.18)
    return _svg(figure, len(policies))


def line_chart(
    curves: Sequence[tuple[int, str, Sequence[float], Sequence[float]]], count: int, label: str
) -> str:
    """Training curves over optimizer steps.

    Each curve is (series, line style, steps, values); ``count`` is the number of ordered series and
    ``label`` names the y axis.
    """
    figure, axes = _figure(3.5, 2.1, left=0.62)
    for number, style, steps, values in curves:
        marker = "o" if len(steps) == 1 else None
        axes.plot(
            steps, values, color=_placeholder(number), linestyle=style, linewidth=1.5, marker=marker
        )
    axes.set_xlabel("optimizer step")
    axes.set_ylabel(label)
    return _svg(figure, count)


def _placeholder(number: int) -> str:
    return f"#02{number:04x}"


def _figure(
    width: float, height: float, left: float = 0.5, bottom: float = 0.42
) -> tuple[Figure, Axes]:
    from matplotlib.figure import Figure

    # Fixed margins in inches, because matplotlib's automatic layout draws every figure twice.
    figure = Figure(figsize=(width, height))
    axes = figure.add_axes(
        (left / width, bottom / height, 1 - (left + 0.1) / width, 1 - (bottom + 0.1) / height)
    )
    axes.spines[["top", "right", "left"]].set_visible(False)
    axes.spines["bottom"].set_color(LINE)
    axes.tick_params(colors=MUTED, length=0, labelsize=8)
    axes.xaxis.label.set(color=MUTED, fontsize=8)
    axes.yaxis.label.set(color=MUTED, fontsize=8)
    axes.grid(visible=True, axis="y", color=LINE, linewidth=0.7)
    axes.set_axisbelow(True)
    figure.patch.set_visible(False)
    axes.patch.set_visible(False)
    return figure, axes


def svg(figure: Figure) -> str:
    """The figure as an SVG file, the same in every run."""
    import matplotlib as mpl

    stream = io.StringIO()
    settings: Any = {"svg.fonttype": "none", "svg.hashsalt": "steep"}
    with mpl.rc_context(settings):
        figure.savefig(stream, format="svg", metadata={"Date": None, "Creator": None})
    return stream.getvalue()


def _svg(figure: Figure, count: int) -> str:
    """Draw the figure, remove ids, metadata and doctype, and insert the CSS variables."""
    text = svg(figure)
    text = text[text.index("<svg") :].strip()
    text = re.sub(r"<metadata>.*?</metadata>", "", text, flags=re.DOTALL)
    text = re.sub(r'<g id="[^"]*"', "<g", text)
    text = re.sub(r' (width|height)="[0-9.]+pt"', "", text, count=2)
    text = text.replace("<svg ", '<svg aria-hidden="true" focusable="false" ', 1)
    # Prefix the ids of clip paths and markers, which must be unique on the page.
    prefix = hashlib.sha256(text.encode()).hexdigest()[:8]
    text = re.sub(r'( id="|url\(#|href="#)', rf"\g<1>{prefix}-", text)
    for color, variable in _VARIABLES.items():
        text = text.replace(color, variable)
    return re.sub(r"#02([0-9a-f]{4})", lambda match: series_color(int(match[1], 16), count), text)
