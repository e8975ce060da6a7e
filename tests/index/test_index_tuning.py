"""Search effort of an approximate index, tuned by recall against exact neighbors."""

import numpy as np
import pytest

from pipeline.knowledge.index.faiss_index import least_effort, recall_probe
from tests.index.test_faiss_search import unit


def nearest(vectors, share=1.0):
    """A search that finds only the first ``share`` of the rows."""

    def search(queries, k):
        cosines = queries @ vectors[: round(share * len(vectors))].T
        found = np.argpartition(-cosines, min(k, cosines.shape[1]) - 1, axis=1)[:, :k]
        by_cosine = np.argsort(-np.take_along_axis(cosines, found, axis=1), axis=1)
        order = np.take_along_axis(found, by_cosine, axis=1)
        return [(rows, cosines[row, rows]) for row, rows in enumerate(order)]

    return search


@pytest.mark.parametrize("rows", [2, 15, 400, 66_000])
def test_exact_search_has_recall_one_across_blocks(rows):
    vectors = unit(rows, 8)
    assert recall_probe(vectors).recall(nearest(vectors)) == 1


def test_recall_is_the_share_of_neighbors_found():
    vectors = unit(4000, 8)
    assert recall_probe(vectors).recall(nearest(vectors, 0.5)) == pytest.approx(0.5, abs=0.03)
    assert recall_probe(vectors).recall(lambda queries, k: [([], [])] * len(queries)) == 0


@pytest.mark.parametrize(
    ("needed", "expected"), [(0.3, (4, 1.0)), (0.6, (8, 1.0)), (2.0, (16, 0.5))]
)
def test_effort_grows_until_the_target_recall_or_the_last_effort(needed, expected):
    vectors = unit(2000, 8)
    applied = []

    def search(queries, k):
        return nearest(vectors, 1.0 if applied[-1] >= 10 * needed else 0.5)(queries, k)

    effort, recall = least_effort(recall_probe(vectors), search, (4, 8, 16), applied.append)
    assert (effort, recall) == (expected[0], pytest.approx(expected[1], abs=0.04))
    assert applied[-1] == effort
