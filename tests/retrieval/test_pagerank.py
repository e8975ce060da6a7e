"""Personalized PageRank against power iteration and a case solved by hand."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from pipeline.knowledge.retrieval.pagerank import personalized_pagerank


@st.composite
def graphs(draw):
    """A symmetric weighted adjacency without loops, and a restart vector."""
    size = draw(st.integers(1, 9))
    weights = st.sampled_from([0.0, 0.0, 1e-3, 0.25, 1.0])
    upper = draw(st.lists(weights, min_size=size * size, max_size=size * size))
    adjacency = np.triu(np.array(upper).reshape(size, size), 1)
    restart = draw(st.lists(st.sampled_from([0.0, 0.5, 1.0]), min_size=size, max_size=size))
    return adjacency + adjacency.T, np.array(restart)


def iterated(adjacency, restart, alpha, times=200):
    sums = adjacency.sum(axis=0)
    walk = adjacency / np.where(sums == 0, 1, sums)
    mass = restart.copy()
    for _ in range(times):
        mass = alpha * walk @ mass + (1 - alpha) * restart
    return mass


def test_chain_of_three_nodes_solved_by_hand():
    path = np.array([[[0.0, 1, 0], [1, 0, 1], [0, 1, 0]]])
    mass = personalized_pagerank(path, np.array([[1.0, 0, 0]]), 0.5)
    np.testing.assert_allclose(mass, [[7 / 12, 1 / 3, 1 / 12]], rtol=0, atol=1e-15)


@given(graphs(), st.sampled_from([0.15, 0.5, 0.85]))
def test_solution_equals_two_hundred_iterations(graph, alpha):
    adjacency, restart = graph
    mass = personalized_pagerank(adjacency[None], restart[None], alpha)[0]
    tolerance = max(1e-12, 10 * alpha**200)
    np.testing.assert_allclose(mass, iterated(adjacency, restart, alpha), rtol=0, atol=tolerance)
