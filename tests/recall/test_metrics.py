"""Recall over retrieved items, with triplets counted for their source document."""

import pytest

from pipeline.core.records import ContextItem
from pipeline.look.recall.questions import ranked_documents, recall_at

ITEMS = [
    ContextItem("triplet", "b-0:1", "", "Bo sings songs", 0.9),
    ContextItem("chunk", "a-0", "Ann", "text", 0.8),
    ContextItem("chunk", "b-0", "Bo", "text", 0.7),
    ContextItem("chunk", "a-1", "Ann", "more", 0.6),
    ContextItem("triplet", "c-0:0", "", "Cy likes Bo", 0.5),
]


def document_of(item):
    return item.id[0]


def test_documents_rank_by_first_appearance_and_strict_counts_only_chunks():
    assert ranked_documents(ITEMS, document_of) == ["b", "a", "c"]
    assert ranked_documents(ITEMS, document_of, strict=True) == ["a", "b"]
    assert ranked_documents([], document_of) == []


@pytest.mark.parametrize(
    ("k", "expected"),
    [(1, 1 / 3), (2, 1 / 3), (3, 2 / 3), (5, 2 / 3)],
)
def test_recall_is_the_share_of_gold_passages_with_a_retrieved_document(k, expected):
    gold = (frozenset({"b", "x"}), frozenset({"c"}), frozenset({"z"}))
    assert recall_at(["b", "a", "c"], gold, k) == pytest.approx(expected)
