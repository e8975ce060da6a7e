"""The knowledge association graph of one reasoning step, ranked by personalised PageRank.

Purpose: choose what a step shows the model. Input: a subquery, its key entities, retrieved chunks
and triplets with raw reranker scores. Output: all chunk and triplet nodes ordered by mass, and the
ids of the best. TeaRAG (arXiv 2511.05385) 4.2.4 and 4.2.5, eq. 3.

Edges, all undirected: 1 between head and tail, triplet and its ends, chunk and triplet taken from
it, chunk and the ends of that triplet, chunk and its title; sigmoid(score) between chunk and
subquery; max(sigmoid(score) - tau, 0) between triplet and subquery. What several rules join is
joined once; nothing is joined to itself. Restart: 1 at the subquery, 0.5 at each key entity.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from pipeline.errors import InputError
from pipeline.graph.entities import entity_key
from pipeline.retrieval.pagerank import personalised_pagerank

Kind = Literal["chunk", "triplet"]
KEY_ENTITY_RESTART = 0.5
DECIMALS = 9  # masses that agree to so many decimals are tied
_BATCH = 32  # graphs solved at once: 32 x 45 x 45 doubles are 0.5 MB and stay in cache


@dataclass(frozen=True, slots=True)
class ScoredChunk:
    """A retrieved chunk; ``score`` is the reranker's raw score against the subquery."""

    id: str
    title: str
    text: str
    score: float


@dataclass(frozen=True, slots=True)
class ScoredTriplet:
    """A retrieved triplet; ``chunk_id`` names the chunk that it was extracted from."""

    id: str
    head: str
    relation: str
    tail: str
    chunk_id: str | None
    score: float

    @property
    def text(self) -> str:
        return f"{self.head} {self.relation} {self.tail}"


@dataclass(frozen=True, slots=True)
class Candidates:
    """What retrieval found for one subquery: the nodes of one graph."""

    entities: Sequence[str]
    chunks: Sequence[ScoredChunk]
    triplets: Sequence[ScoredTriplet]


@dataclass(frozen=True, slots=True)
class Ranked:
    """A chunk or triplet node; ``position`` is its place among the chunks or triplets given."""

    kind: Kind
    id: str
    mass: float
    position: int = 0


@dataclass(frozen=True, slots=True)
class Kag:
    """A graph as lists: node 0 is the subquery, then chunks, triplets, entities.

    Edges (left[e], right[e]) may repeat; a repetition carries the same weight.
    """

    nodes: int
    left: list[int]
    right: list[int]
    weights: list[float]
    key_entities: list[int]


def rank(
    subquery: str,
    entities: Sequence[str],
    chunks: Sequence[ScoredChunk],
    triplets: Sequence[ScoredTriplet],
    *,
    tau: float = 0.2,
    alpha: float = 0.5,
    keep: int = 5,
) -> tuple[list[Ranked], list[str]]:
    """All chunk and triplet nodes, best first, and the ids of the ``keep`` best.

    Ties (masses equal to 9 decimals): chunk before triplet, higher score, input order. The text of
    the subquery has no part in it: its similarity to the others is in their scores. Raises
    InputError when an id is repeated or a score is not a number.
    """
    ranking = next(rank_all([Candidates(entities, chunks, triplets)], tau=tau, alpha=alpha))
    return ranking, [node.id for node in ranking[:keep]]


def rank_all(
    steps: Sequence[Candidates], *, tau: float = 0.2, alpha: float = 0.5
) -> Iterator[list[Ranked]]:
    """`rank` for many steps; graphs are solved in batches. Yields rankings in input order."""
    for start in range(0, len(steps), _BATCH):
        part = steps[start : start + _BATCH]
        mass_BN = _masses([build(step, tau) for step in part], alpha)
        rounded_BN = np.round(mass_BN, DECIMALS)
        for step, mass, rounded in zip(part, mass_BN.tolist(), rounded_BN.tolist(), strict=True):
            yield _order(step, mass, rounded)


def build(step: Candidates, tau: float) -> Kag:
    """The graph of one step (4.2.4)."""
    _check(step)
    chunks, triplets = step.chunks, step.triplets
    after_chunks = 1 + len(chunks)
    first_entity = after_chunks + len(triplets)
    numbers: dict[str, int] = {}
    left: list[int] = []
    right: list[int] = []
    weights: list[float] = []

    def entity(surface: str) -> int | None:
        key = entity_key(surface)
        return numbers.setdefault(key, first_entity + len(numbers)) if key else None

    def join(one: int, other: int | None, weight: float = 1.0) -> None:
        if other is not None and one != other:
            left.append(one)
            right.append(other)
            weights.append(weight)

    key_entities = {entity(surface) for surface in step.entities}
    chunk_of: dict[str | None, int] = {}
    for node, chunk in enumerate(chunks, start=1):
        chunk_of[chunk.id] = node
        join(0, node, sigmoid(chunk.score))
        join(node, entity(chunk.title))
    for node, triplet in enumerate(triplets, start=after_chunks):
        head, tail = entity(triplet.head), entity(triplet.tail)
        source = chunk_of.get(triplet.chunk_id)
        if head is not None:
            join(head, tail)
        join(node, head)
        join(node, tail)
        if source is not None:
            join(source, node)
            join(source, head)
            join(source, tail)
        above = sigmoid(triplet.score) - tau
        if above > 0:
            join(0, node, above)
    return Kag(
        nodes=first_entity + len(numbers),
        left=left,
        right=right,
        weights=weights,
        key_entities=[node for node in key_entities if node is not None],
    )


def sigmoid(score: float) -> float:
    """1 / (1 + exp(-score)), without overflow."""
    if score >= 0:
        return 1 / (1 + math.exp(-score))
    power = math.exp(score)
    return power / (1 + power)


def _masses(graphs: Sequence[Kag], alpha: float) -> NDArray[np.float64]:
    size = max(graph.nodes for graph in graphs)
    edges_B = [len(graph.left) for graph in graphs]
    graph_E = np.repeat(np.arange(len(graphs)), edges_B)
    left_E = np.array([node for graph in graphs for node in graph.left], dtype=np.intp)
    right_E = np.array([node for graph in graphs for node in graph.right], dtype=np.intp)
    weight_E = np.array([weight for graph in graphs for weight in graph.weights], dtype=np.float64)
    adjacency_BNN = np.zeros((len(graphs), size, size))
    adjacency_BNN[graph_E, left_E, right_E] = weight_E
    adjacency_BNN[graph_E, right_E, left_E] = weight_E
    restart_BN = np.zeros((len(graphs), size))
    restart_BN[:, 0] = 1.0
    for row, graph in enumerate(graphs):
        restart_BN[row, graph.key_entities] = KEY_ENTITY_RESTART
    return personalised_pagerank(adjacency_BNN, restart_BN, alpha)


def _order(step: Candidates, mass: Sequence[float], rounded: Sequence[float]) -> list[Ranked]:
    after_chunks = 1 + len(step.chunks)
    keys = [
        (-rounded[node], 0, -chunk.score, node) for node, chunk in enumerate(step.chunks, start=1)
    ]
    keys += [
        (-rounded[node], 1, -triplet.score, node)
        for node, triplet in enumerate(step.triplets, start=after_chunks)
    ]
    keys.sort()
    return [
        Ranked("chunk", step.chunks[node - 1].id, mass[node], node - 1)
        if kind == 0
        else Ranked(
            "triplet", step.triplets[node - after_chunks].id, mass[node], node - after_chunks
        )
        for _, kind, _, node in keys
    ]


def _check(step: Candidates) -> None:
    for kind, items in (("chunk", step.chunks), ("triplet", step.triplets)):
        if len({item.id for item in items}) < len(items):
            names = [item.id for item in items]
            twice = next(name for name in names if names.count(name) > 1)
            raise InputError(f"{kind} id {twice!r} is repeated; give every {kind} an id of its own")
        for item in items:
            if item.score != item.score:
                raise InputError(f"score of {kind} {item.id!r} is not a number")
