"""What the browser reads of a run's settings."""

from __future__ import annotations

from pipeline.browse.sources import Group


def test_a_pair_shows_the_thresholds_of_its_own_kind_alone() -> None:
    block = {"easy_outcome": 0.3, "margin": 0.1, "decisions": 1, "step_margin": 0.2, "limit": 9}
    group = Group("round-1", None, thresholds=block)
    assert set(group.thresholds_of("easy")) == {"easy_outcome", "limit"}
    assert set(group.thresholds_of("margin")) == {"margin", "decisions", "limit"}
    assert set(group.thresholds_of("step")) == {"step_margin", "limit"}
