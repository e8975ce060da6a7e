"""Figures of the report."""

from __future__ import annotations

import re
from collections.abc import Callable

import pytest

from pipeline.evaluation import plots

NAMES = ["Round 1", "$\\frac{$", "a$b$c"]


@pytest.mark.parametrize(
    "figure",
    [
        lambda: plots.learning_curve(NAMES, {plots.EM: [(0.5, None)] * 3}, None),
        lambda: plots.stacked_bars(NAMES, {plots.THINKING: [1.0] * 3}, "tokens"),
    ],
    ids=["learning_curve", "stacked_bars"],
)
def test_names_of_policies_are_shown_as_they_are_and_not_read_as_formulas(
    figure: Callable[[], str],
) -> None:
    assert set(NAMES) <= set(re.findall(r">([^<]+)</text>", figure()))
