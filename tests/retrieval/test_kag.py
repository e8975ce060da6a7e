"""The ranking of a knowledge association graph, against the definition and cases solved by hand."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipeline.knowledge.retrieval.base import ScoredChunk, ScoredTriplet
from pipeline.knowledge.retrieval.kag import Candidates, personalized_pagerank, rank, rank_all

NAMES = ["Rome", "ROME", '"Rome"', "Tiber", "Italy", "river", " Italy ", ""]
SCORES = st.sampled_from([-40.0, -3.0, math.log(0.25), -1.0, 0.0, 0.5, 4.0, 800.0])


def chunk(name, title="", score=0.0):
    return ScoredChunk(name, title, f"text of {name}", score)


def triplet(name, head, tail, chunk_id=None, score=-9.0):
    return ScoredTriplet(name, head, "relation", tail, chunk_id, score)


@st.composite
def candidates(draw):
    names = st.sampled_from(NAMES)
    sources = st.sampled_from(["c0", "c1", "c9", None])
    chunks = [chunk(f"c{n}", draw(names), draw(SCORES)) for n in range(draw(st.integers(0, 4)))]
    triplets = [
        triplet(f"t{n}", draw(names), draw(names), draw(sources), draw(SCORES))
        for n in range(draw(st.integers(0, 6)))
    ]
    return Candidates(draw(st.lists(names, max_size=3)), chunks, triplets)


def reference(step, tau, alpha):
    """The masses by the paper's definition, in networkx with 200 power iterations."""
    import networkx as nx

    fold = lambda name: " ".join(name.casefold().replace('"', "").split())  # noqa: E731
    probability = lambda score: float(np.exp(-np.logaddexp(0, -score)))  # noqa: E731
    graph = nx.Graph()
    graph.add_node("q")

    def ones(pairs):
        graph.add_edges_from(
            (a, b, {"weight": 1.0}) for a, b in pairs if a != b and ("e", "") not in (a, b)
        )

    for item in step.chunks:
        graph.add_node(("c", item.id))
        graph.add_edge(("c", item.id), "q", weight=probability(item.score))
        ones([(("c", item.id), ("e", fold(item.title)))])
    present = {item.id for item in step.chunks}
    for item in step.triplets:
        node, head, tail = ("t", item.id), ("e", fold(item.head)), ("e", fold(item.tail))
        graph.add_node(node)
        ones([(head, tail), (node, head), (node, tail)])
        if item.chunk_id in present:
            source = ("c", item.chunk_id)
            ones([(source, node), (source, head), (source, tail)])
        if probability(item.score) - tau > 0:
            graph.add_edge(node, "q", weight=probability(item.score) - tau)
    keys = {("e", fold(name)) for name in step.entities if fold(name)}
    graph.add_nodes_from(keys)
    nodes = list(graph)
    adjacency = nx.to_numpy_array(graph, nodes)
    sums = adjacency.sum(axis=0)
    walk = adjacency / np.where(sums == 0, 1, sums)
    restart = np.array([1.0 if n == "q" else 0.5 if n in keys else 0.0 for n in nodes])
    mass = restart
    for _ in range(200):
        mass = alpha * walk @ mass + (1 - alpha) * restart
    return dict(zip(nodes, mass.tolist(), strict=True))


@given(
    st.lists(candidates(), min_size=1, max_size=3),
    st.sampled_from([0.0, 0.2, 0.5]),
    st.sampled_from([0.15, 0.5, 0.85]),
)
def test_masses_equal_two_hundred_iterations_of_the_definition(steps, tau, alpha):
    for step, ranking in zip(steps, rank_all(steps, tau=tau, alpha=alpha), strict=True):
        expected = reference(step, tau, alpha)
        assert len(ranking) == len(step.chunks) + len(step.triplets)
        for node in ranking:
            assert node.mass == pytest.approx(expected[node.kind[0], node.id], abs=1e-9)
        rounded = [round(node.mass, 9) for node in ranking]
        assert rounded == sorted(rounded, reverse=True)


def test_chain_of_three_nodes_solved_by_hand():
    path = np.array([[[0.0, 1, 0], [1, 0, 1], [0, 1, 0]]])
    mass = personalized_pagerank(path, np.array([[1.0, 0, 0]]), 0.5)
    np.testing.assert_allclose(mass, [[7 / 12, 1 / 3, 1 / 12]], rtol=0, atol=1e-15)


def test_ties_go_to_the_higher_score_then_to_input_order():
    # Without entities a chunk is connected to the subquery only; equal scores give equal masses.
    same = [chunk("late", score=0.0), chunk("first", score=0.0)]
    assert rank("q", [], same, [])[1] == ["late", "first"]
    # Both sigmoids round to 1, so the masses are tied and the raw score breaks the tie.
    far = [chunk("low", score=60.0), chunk("high", score=70.0)]
    assert rank("q", [], far, [])[1] == ["high", "low"]


def test_chunk_goes_before_a_triplet_of_equal_mass():
    # Both masses are 0: there is no key entity, and the edges to q have weight 0.
    ranking, _ = rank(
        "q", [], [chunk("c", score=-math.inf)], [triplet("t", "a", "b", score=5e-3)], tau=1.0
    )
    assert [(node.kind, node.mass) for node in ranking] == [("chunk", 0.0), ("triplet", 0.0)]


def test_mass_of_a_node_does_not_depend_on_the_other_steps():
    steps = [
        Candidates(
            [f"entity {size}"],
            [chunk(f"c{n}", f"title {n % 3}", 0.1 * n) for n in range(1 + size % 5)],
            [
                triplet(f"t{n}", f"entity {n % (2 + size)}", f"title {n % 4}", "c0", 0.3 * n - 1)
                for n in range(size)
            ],
        )
        for size in range(1, 30)
    ]
    together = list(rank_all(steps))
    alone = [next(rank_all([step])) for step in steps]
    assert together == alone
    assert list(rank_all(steps[::-1])) == alone[::-1]
