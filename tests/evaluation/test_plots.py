"""Figures of the report."""

from __future__ import annotations

import re

from pipeline.evaluation import plots

NAMES = ["Round 1", "$\\frac{$", "a$b$c"]


def test_names_of_policies_are_shown_as_they_are_and_not_read_as_formulas() -> None:
    figure = plots.learning_curve(NAMES, {plots.EM: [(0.5, None)] * 3}, None)
    assert set(NAMES) <= set(re.findall(r">([^<]+)</text>", figure))
