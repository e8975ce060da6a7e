"""Figures of the report."""

from __future__ import annotations

import re

from pipeline.evaluation import plots

NAMES = ["Round 1", "$\\frac{$", "a$b$c"]


def test_names_of_policies_are_shown_as_they_are_and_not_read_as_formulas() -> None:
    figure = plots.learning_curve(NAMES, {plots.EM: [(0.5, None)] * 3}, None)
    assert set(NAMES) <= set(re.findall(r">([^<]+)</text>", figure))


def test_each_of_a_thousand_rounds_has_a_color_of_its_own() -> None:
    """``rounds`` may be 1,000; the colors of EM and F1 belong to no round."""
    colors = [plots.series_color(number, 1000) for number in range(1000)]
    assert not any("--em" in color or "--f1" in color for color in colors)
    assert "var(--ink)" in plots.line_chart([(plots.SFT, "-", [1], [0.5])], 1, "loss")
    for number in (0, 62, 255, 256, 999):
        assert colors[number] in plots.line_chart([(number, "-", [1, 2], [0.5, 0.4])], 1000, "loss")
