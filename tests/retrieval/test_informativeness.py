"""Entity informativeness against a plain reference of eq. 6 to 10, and one case by hand."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import assume, example, given
from hypothesis import strategies as st

from pipeline.knowledge.retrieval.informativeness import (
    Incidence,
    best_edges,
    cosine_to_mean,
    informativeness,
    informativeness_over_all,
)

# A share of eq. 9 jumps where a cosine of 0 is rounded to a number above 0.
NEAR_ZERO = 1e-9


def reference(
    members: list[set[int]], vectors: list[list[float]], named: set[int], further: set[int]
) -> dict[int, float]:
    """Eq. 6 to 9 over sets, in plain Python, of the hyperedges of ``named`` and ``further`` entities."""

    def norm(vector: list[float]) -> float:
        return math.sqrt(sum(x * x for x in vector))

    mean = [sum(vectors[u][d] for u in named) / len(named) for d in range(len(vectors[0]))]

    def s(v: int) -> float:
        over = norm(vectors[v]) * norm(mean)
        cosine = sum(x * y for x, y in zip(vectors[v], mean, strict=True)) / over if over else 0.0
        return cosine if abs(cosine) > NEAR_ZERO else 0.0

    of_query = [edge for edge in members if edge & named]

    def informative(v: int) -> float:
        return math.log(1 + sum(v in e for e in of_query) / sum(v in e for e in members))

    scores = {}
    for number, edge in enumerate(members):
        if edge & (named | further):
            total = sum(max(s(v), 0.0) for v in edge)
            share = {v: max(s(v), 0.0) / total if total else 0.0 for v in edge}
            scores[number] = sum(share[v] * informative(v) for v in edge)
    return scores


ENTITIES = 6
edges = st.lists(st.sets(st.integers(0, ENTITIES - 1), min_size=1, max_size=4), max_size=8)
numbers = st.integers(-3, 3).map(float)
embeddings = st.lists(
    st.lists(numbers, min_size=2, max_size=2), min_size=ENTITIES, max_size=ENTITIES
)
chosen = st.sets(st.integers(0, ENTITIES - 1), min_size=1, max_size=3)


@given(edges, embeddings, chosen, st.sets(st.integers(0, ENTITIES - 1), max_size=3))
@example(
    [{0, 5}],
    [[0.0, 0.0], [-1.0, -3.0], [0.0, 0.0], [0.0, 0.0], [0.0, 0.0], [-3.0, 1.0]],
    {0, 1},
    set(),
)
def test_scores_equal_a_plain_python_reference(
    members: list[set[int]], vectors: list[list[float]], named: set[int], further: set[int]
) -> None:
    incidence = Incidence.of(members, ENTITIES)
    cosine = cosine_to_mean(np.array(vectors), sorted(named))
    values = np.abs(cosine(np.arange(ENTITIES)))
    assume(not np.any((values > 0) & (values < NEAR_ZERO)))
    ranked_edges, scores = informativeness(incidence, sorted(named), cosine, sorted(further))
    expected = reference(members, vectors, named, further)
    assert ranked_edges.tolist() == sorted(expected)
    for edge, score in zip(ranked_edges.tolist(), scores.tolist(), strict=True):
        assert score == pytest.approx(expected[edge], abs=1e-9)


@given(edges, embeddings, chosen, st.integers(1, 4))
def test_the_best_hyperedges_of_all_equal_a_plain_python_reference(
    members: list[set[int]], vectors: list[list[float]], named: set[int], top_k: int
) -> None:
    """Only hyperedges with a score above 0 are compared; eq. 10 leaves the order of the others open."""
    incidence = Incidence.of(members, ENTITIES)
    cosine = cosine_to_mean(np.array(vectors), sorted(named))
    values = np.abs(cosine(np.arange(ENTITIES)))
    assume(not np.any((values > 0) & (values < NEAR_ZERO)))
    ranked = informativeness_over_all(incidence, sorted(named), cosine, top_k=top_k)
    found = [(edge, score) for edge, score in best_edges(*ranked, str, top_k) if score > NEAR_ZERO]
    scored = reference(members, vectors, named, set(range(ENTITIES)))
    positive = {edge: round(score, 9) for edge, score in scored.items() if score > NEAR_ZERO}
    expected = sorted(positive.values(), reverse=True)[:top_k]
    assert [round(score, 9) for _, score in found] == pytest.approx(expected, abs=1e-8)
    for edge, score in found:
        assert score == pytest.approx(scored[edge], abs=1e-9)


def test_scores_of_a_case_solved_by_hand() -> None:
    """Query entity 0 = (1, 0); entities 1 = (3, 4) / 5 and 2 = (0, 1); edges {0, 1}, {0, 2}, {1, 2}.

    s = 1, .6, 0. E_q holds the first two edges: I(0) = log 2, I(1) = I(2) = log 1.5. The first edge
    scores (1 log 2 + .6 log 1.5) / 1.6, the second log 2. The third has no entity of the query, so
    it is no candidate, although eq. 9 gives it log 1.5.
    """
    incidence = Incidence.of([[0, 1], [0, 2], [1, 2]], 3)
    vectors = np.array([[1, 0], [0.6, 0.8], [0, 1]])
    ranked_edges, scores = informativeness(incidence, [0], cosine_to_mean(vectors, [0]))
    assert ranked_edges.tolist() == [0, 1]
    assert scores == pytest.approx([(math.log(2) + 0.6 * math.log(1.5)) / 1.6, math.log(2)])
    # With further entity 2, the third edge is a candidate; entity 1 alone counts, because s of 2 is 0.
    ranked_edges, scores = informativeness(incidence, [0], cosine_to_mean(vectors, [0]), [2])
    assert ranked_edges.tolist() == [0, 1, 2]
    assert scores[2] == pytest.approx(math.log(1.5))


def test_scores_equal_up_to_rounding_are_ordered_by_id() -> None:
    ids = ["b", "c", "a"]
    ranked_edges = np.arange(3)
    scores = np.array([0.1 + 0.2, 0.5, 0.3])
    assert [edge for edge, _ in best_edges(ranked_edges, scores, ids.__getitem__, 3)] == [1, 2, 0]
    assert [edge for edge, _ in best_edges(ranked_edges, scores, ids.__getitem__, 2)] == [1, 2]
    assert best_edges(ranked_edges[:0], scores[:0], ids.__getitem__, 2) == []
