"""Row ``kag``: building and ranking knowledge association graphs, against graph libraries.

Work: steps of 5 chunks and 10 triplets, from candidates to the ranking of their nodes (TeaRAG,
arXiv 2511.05385, 4.2.4, 4.2.5). The peers receive the same graph edge by edge, as is usual with a
graph library, and rank it with their personalized PageRank.

The definitions of the peers differ from eq. 3, so their calls are adapted. They normalize the
restart vector, so their masses are multiplied by its sum. They return the mass of a node without
edges to the restart (ours is lost), so key entities without edges are left out, which changes no
other node. Parallel edges would be added, so each edge is passed once. Their default tolerances do
not separate the tenth node from the eleventh, so tighter ones are set. Rankings are equal up to
ties, which are nodes whose masses agree to 8 decimals.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

from benchmarks.peers import Missing, peer, version
from benchmarks.steps import make_steps, material
from benchmarks.timing import Row, alternate, per
from pipeline.knowledge.graph.entities import entity_key
from pipeline.knowledge.retrieval.kag import (
    KEY_ENTITY_RESTART,
    Candidates,
    RankedNode,
    rank_all,
    sigmoid,
)

TAU, ALPHA = 0.2, 0.5
TIED = 1e-8
# Less work than ours: names are numbered and edges listed in advance, and nothing is ranked.
CALLS_ALONE = "igraph's Graph and PageRank alone"
_SLOW = 1_000  # steps for the peers that take a millisecond per step

Node = tuple[str, str]
Ranking = list[tuple[Node, float]]  # nodes of chunks and triplets with their masses, best first
Ranker = Callable[[Candidates], Ranking]
SUBQUERY: Node = ("subquery", "")


@dataclass(frozen=True)
class Graph:
    """The graph of a step as a list of edges; ``restart`` holds only nodes with edges."""

    nodes: list[Node]
    edges: dict[tuple[int, int], float]
    restart: dict[int, float]


def rows(count: int, repeats: int, missing: Missing) -> list[Row]:
    """Our ranking against python-igraph (built in two ways), scikit-network and networkx.

    Peers that are not installed are left out. Raises AssertionError when rankings differ.
    """
    source = material()
    steps = make_steps(source, count)
    fast: dict[str, Ranker] = {}
    if missing.has("igraph"):
        fast[f"igraph {version('igraph')}, edges by number"] = by_igraph
        fast[f"igraph {version('igraph')}, edges by name"] = by_igraph_names
    slow: dict[str, Ranker] = {}
    if missing.has("sknetwork"):
        slow[f"scikit-network {version('sknetwork')}"] = by_scikit_network
    if missing.has("networkx"):
        slow[f"networkx {version('networkx')}"] = by_networkx
    ours = list(rank_all(steps, tau=TAU, alpha=ALPHA))
    for group, part in ((fast, steps), (slow, steps[:_SLOW])):
        for name, ranker in group.items():
            for number, (step, ranking) in enumerate(zip(part, ours, strict=False)):
                check(name, number, ranking, ranker(step))
    result = []
    for group, part in ((fast, steps), (slow, steps[:_SLOW])):
        if not group:
            continue
        contenders: dict[str, Callable[[], object]] = {"ours": partial(_all, part)}
        contenders |= {name: partial(_each, ranker, part) for name, ranker in group.items()}
        if group is fast:
            contenders[CALLS_ALONE] = partial(_igraph_calls, [graph_of(step) for step in steps])
        seconds = alternate(contenders, repeats)
        result += [
            Row(
                "kag",
                f"{len(part):,} steps, {source.source}",
                name,
                per(seconds["ours"], len(part)),
                per(seconds[name], len(part)),
                "µs per step",
                goal="> 1; ours ≤ 100 µs" if name.endswith("by number") else "",
            )
            for name in seconds
            if name != "ours"
        ]
    return result


def check(peer_name: str, number: int, ours: Sequence[RankedNode], theirs: Ranking) -> None:
    """Assert that the masses and, up to ties, the rankings of one step are equal."""
    mass: dict[Node, float] = {(node.kind, node.id): node.mass for node in ours}
    other = dict(theirs)
    assert mass.keys() == other.keys(), f"step {number}: {peer_name} ranks other nodes"
    worst = max((abs(mass[node] - other[node]) for node in other), default=0.0)
    assert worst < TIED, f"step {number}: {peer_name} differs by {worst} in mass"
    for order in ([(node.kind, node.id) for node in ours], [node for node, _ in theirs]):
        for masses in (mass, other):
            in_order = [masses[node] for node in order]
            descending = all(a >= b - TIED for a, b in itertools.pairwise(in_order))
            assert descending, f"step {number}: {peer_name} ranks differently"


def graph_of(step: Candidates) -> Graph:
    """The graph of 4.2.4 as a list of edges without duplicates."""
    numbers: dict[Node, int] = {SUBQUERY: 0}
    edges: dict[tuple[int, int], float] = {}

    def node(kind: str, name: str) -> int:
        return numbers.setdefault((kind, name), len(numbers))

    def entity(surface: str) -> int | None:
        key = entity_key(surface)
        return node("entity", key) if key else None

    def join(a: int | None, b: int | None, weight: float = 1.0) -> None:
        if a is not None and b is not None and a != b:
            edges[(a, b) if a < b else (b, a)] = weight

    chunks = {chunk.id: node("chunk", chunk.id) for chunk in step.chunks}
    for chunk in step.chunks:
        join(0, chunks[chunk.id], sigmoid(chunk.score))
        join(chunks[chunk.id], entity(chunk.title))
    for triplet in step.triplets:
        triplet_node = node("triplet", triplet.id)
        head, tail = entity(triplet.head), entity(triplet.tail)
        source = chunks.get(triplet.chunk_id or "")
        join(head, tail)
        join(triplet_node, head)
        join(triplet_node, tail)
        join(source, triplet_node)
        join(source, head)
        join(source, tail)
        weight = sigmoid(triplet.score) - TAU
        if weight > 0:
            join(0, triplet_node, weight)
    restart = {0: 1.0}
    for surface in step.entities:
        number = numbers.get(("entity", entity_key(surface)))
        if number is not None:
            restart[number] = KEY_ENTITY_RESTART
    return Graph(list(numbers), edges, restart)


def by_igraph(step: Candidates) -> Ranking:
    """python-igraph with vertices by number, its fastest interface."""
    graph = graph_of(step)
    return _ranking(graph, _igraph(graph))


def _igraph(graph: Graph) -> list[float]:
    built = peer("igraph").Graph(len(graph.nodes), list(graph.edges))
    mass: list[float] = built.personalized_pagerank(
        damping=ALPHA, reset=_restart(graph), weights=list(graph.edges.values())
    )
    return mass


def by_igraph_names(step: Candidates) -> Ranking:
    """python-igraph with vertices by name."""
    graph = graph_of(step)
    named = [(graph.nodes[a], graph.nodes[b], weight) for (a, b), weight in graph.edges.items()]
    built = peer("igraph").Graph.TupleList(named, weights=True)
    names = built.vs["name"]
    restart = {graph.nodes[at]: share for at, share in graph.restart.items()}
    mass = built.personalized_pagerank(
        damping=ALPHA, reset=[restart.get(name, 0.0) for name in names], weights="weight"
    )
    mass_of = dict(zip(names, mass, strict=True))
    return _ranking(graph, [mass_of.get(node, 0.0) for node in graph.nodes])


def by_scikit_network(step: Candidates) -> Ranking:
    """scikit-network by power iteration; its other solvers are neither faster nor more exact."""
    from scipy import sparse

    graph = graph_of(step)
    ends_E2 = np.array(list(graph.edges))
    weight_E = np.array(list(graph.edges.values()))
    rows_N, columns_N = np.r_[ends_E2[:, 0], ends_E2[:, 1]], np.r_[ends_E2[:, 1], ends_E2[:, 0]]
    size = len(graph.nodes)
    adjacency = sparse.csr_matrix((np.r_[weight_E, weight_E], (rows_N, columns_N)), (size, size))
    pagerank = peer("sknetwork.ranking").PageRank(ALPHA, "piteration", n_iter=100, tol=1e-12)
    mass = pagerank.fit_predict(adjacency, weights=np.array(_restart(graph)))
    return _ranking(graph, mass.tolist())


def by_networkx(step: Candidates) -> Ranking:
    """networkx by power iteration in scipy."""
    networkx = peer("networkx")
    graph = graph_of(step)
    built = networkx.Graph()
    built.add_nodes_from(range(len(graph.nodes)))
    built.add_weighted_edges_from((a, b, weight) for (a, b), weight in graph.edges.items())
    mass = networkx.pagerank(built, ALPHA, graph.restart, tol=1e-12, max_iter=200)
    return _ranking(graph, [mass[node] for node in range(len(graph.nodes))])


def _restart(graph: Graph) -> list[float]:
    restart = [0.0] * len(graph.nodes)
    for node, share in graph.restart.items():
        restart[node] = share
    return restart


def _ranking(graph: Graph, mass: Sequence[float]) -> Ranking:
    total = sum(graph.restart.values())
    ranked = [
        (node, share * total)
        for node, share in zip(graph.nodes, mass, strict=True)
        if node[0] in ("chunk", "triplet")
    ]
    ranked.sort(key=lambda node: -node[1])
    return ranked


def _igraph_calls(graphs: Sequence[Graph]) -> Any:
    return [_igraph(graph) for graph in graphs]


def _all(steps: Sequence[Candidates]) -> Any:
    return list(rank_all(steps, tau=TAU, alpha=ALPHA))


def _each(ranker: Ranker, steps: Sequence[Candidates]) -> Any:
    return [ranker(step) for step in steps]
