"""Truncation of retrieved items to a number of characters and to a token limit."""

from pipeline.core.records import ContextItem
from pipeline.rollout.sampler import fit_items, truncate_items


def test_truncation_removes_whole_items_and_whole_words():
    items = [ContextItem("chunk", name, "T", "one two three", 0.0) for name in "ab"]

    def kept(count: int) -> list[str]:
        return [item.text for item in truncate_items(items, count)]

    assert kept(100) == kept(26) == ["one two three"] * 2
    assert kept(18) == ["one two three", "one"]
    assert kept(17) == ["one two three", "one "]
    assert kept(15) == ["one two three", "on"]
    assert kept(13) == ["one two three"]
    assert kept(9) == ["one two"]
    assert kept(0) == ["o"]


def characters(items: list[ContextItem]) -> int:
    return sum(len(item.text) for item in items)


def test_items_are_fitted_to_the_limit_and_kept_whole_below_it():
    items = [ContextItem("chunk", name, "T", "one two three", 0.0) for name in "ab"]
    assert fit_items(items, 26, characters) == items
    assert [item.text for item in fit_items(items, 20, characters)] == ["one two three", "one two"]
    assert [item.text for item in fit_items(items, 0, characters)] == ["o"]
