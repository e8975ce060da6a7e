"""Rank the knowledge association graph (KAG) of a reasoning step by personalized PageRank.

The ranking chooses a step's context. Input: a subquery, its key entities, retrieved chunks and
triplets with raw reranker scores. Output: all chunk and triplet nodes ordered by mass, and the ids
of the best (TeaRAG, arXiv 2511.05385, 4.2.4 and 4.2.5, eq. 1 to 3).

All edges are undirected. Their weights are 1 between head and tail, between a triplet and its ends,
between a chunk and its triplets, between a chunk and the ends of its triplets, and between a chunk
and its title; sigmoid(score) between a chunk and the subquery (eq. 1); max(sigmoid(score) - tau, 0)
between a triplet and the subquery (eq. 2). An edge that several rules produce counts once, and
there are no self-loops. The restart vector is 1 at the subquery and 0.5 at each key entity.

The paper iterates (eq. 3)

    π ← α W π + (1 − α) p

where W is the adjacency matrix A with every column divided by its sum (columns without edges stay
zero), and p, the restart vector, is not normalized.

`personalized_pagerank` solves for the fixed point. Let D be the diagonal matrix of column sums,
with 1 for nodes without edges. Then W = A D⁻¹, and π = D x turns (I − α W) π = (1 − α) p into

    (D − α A) x = (1 − α) p,

which is symmetric and, for α < 1, strictly diagonally dominant. With α = 0.5, α²⁰⁰ < 1e-60, so the
solution equals the paper's 200 iterations to the last digit of a double.

Example: the chain 0 – 1 – 2 with weights 1, α = 1/2, p = (1, 0, 0). Column 1 of W is (1/2, 0, 1/2),
so π₀ = π₁/4 + 1/2, π₁ = (π₀ + π₂)/2, π₂ = π₁/4, hence π = (7/12, 1/3, 1/12).
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from pipeline.core.errors import InputError
from pipeline.knowledge.graph.entities import entity_key
from pipeline.knowledge.retrieval.base import ScoredChunk, ScoredTriplet

Kind = Literal["chunk", "triplet"]
Numbers = NDArray[np.int64]
Doubles = NDArray[np.float64]
KEY_ENTITY_RESTART = 0.5
DECIMALS = 9  # masses that agree to 9 decimals are ties
_ABSENT = -1  # number of an entity without a name, or of a chunk that was not retrieved
_ENTITY_NODES = 8  # entity nodes of a graph are a multiple of this
_BATCH = 64  # graphs solved at once: 64 x 40 x 40 doubles are 0.8 MB and stay in cache


@dataclass(frozen=True, slots=True)
class Candidates:
    """The retrieved candidates of one subquery: the nodes of one graph."""

    entities: Sequence[str]  # key entities
    chunks: Sequence[ScoredChunk]
    triplets: Sequence[ScoredTriplet]


class RankedNode(NamedTuple):
    """A ranked chunk or triplet node."""

    kind: Kind
    id: str
    mass: float  # PageRank mass
    position: int = 0  # index among the candidate chunks or triplets


def rank(
    subquery: str,
    entities: Sequence[str],
    chunks: Sequence[ScoredChunk],
    triplets: Sequence[ScoredTriplet],
    *,
    tau: float = 0.2,
    alpha: float = 0.5,
    top_k: int = 5,
) -> tuple[list[RankedNode], list[str]]:
    """All chunk and triplet nodes, best first, and the ids of the ``top_k`` best.

    Ties (masses equal to 9 decimals) are broken by kind, chunks first, then by higher score, then
    by input order. The text of ``subquery`` is not used: its similarity to the candidates is in
    their scores. Raises InputError when an id is repeated or a score is not a number.
    """
    ranking = next(rank_all([Candidates(entities, chunks, triplets)], tau=tau, alpha=alpha))
    return ranking, [node.id for node in ranking[:top_k]]


def rank_all(
    steps: Sequence[Candidates], *, tau: float = 0.2, alpha: float = 0.5
) -> Iterator[list[RankedNode]]:
    """Yield the ranking of each step, as `rank` does, in input order.

    Graphs are built and solved in batches. The last bits of a solution depend on the size of the
    matrix, so all graphs of a batch share the layout that each would have alone.
    """
    for start in range(0, len(steps), _BATCH):
        part = steps[start : start + _BATCH]
        by_layout: dict[_Layout, list[int]] = {}
        entities = [_entities(step) for step in part]
        for number, (step, of_step) in enumerate(zip(part, entities, strict=True)):
            by_layout.setdefault(_Layout.of(step, of_step), []).append(number)
        rankings: dict[int, list[RankedNode]] = {}
        for layout, numbers in by_layout.items():
            same = [part[number] for number in numbers]
            graphs = _build(same, [entities[number] for number in numbers], layout, tau)
            rankings |= zip(numbers, _solved(same, *graphs, layout.chunks, alpha), strict=True)
        yield from (rankings[number] for number in range(len(part)))


def _solved(
    steps: Sequence[Candidates],
    adjacency_BNN: Doubles,
    restart_BN: Doubles,
    score_BI: Doubles,
    chunks: int,
    alpha: float,
) -> Iterator[list[RankedNode]]:
    """The rankings of steps with as many ``chunks`` each, from the output of `_build`."""
    items = score_BI.shape[1]
    mass_BI = personalized_pagerank(adjacency_BNN, restart_BN, alpha)[:, 1 : 1 + items]
    kind_BI = np.broadcast_to(np.arange(items) >= chunks, mass_BI.shape)
    # lexsort sorts by its last key first and keeps the input order of complete ties.
    order_BI = np.lexsort((-score_BI, kind_BI, -np.round(mass_BI, DECIMALS)), axis=-1)
    for step, mass, order in zip(steps, mass_BI.tolist(), order_BI.tolist(), strict=True):
        ids = [chunk.id for chunk in step.chunks] + [triplet.id for triplet in step.triplets]
        yield [
            RankedNode("chunk", ids[node], mass[node], node)
            if node < chunks
            else RankedNode("triplet", ids[node], mass[node], node - chunks)
            for node in order
        ]


def _build(
    steps: Sequence[Candidates], entities: Sequence[_Entities], layout: _Layout, tau: float
) -> tuple[Doubles, Doubles, Doubles]:
    """Edge weights [B, N, N], restart vectors [B, N], and raw scores [B, I] of chunks and triplets.

    Node 0 of a graph (4.2.4) is the subquery; then come chunks, triplets and entities, with nodes
    without edges where a step has fewer. Raises InputError as `rank` does.

    Python numbers every name once; NumPy then writes the edges of all steps at once. Edges to a
    missing node (an entity without a name, or the chunk of a triplet when it was not retrieved) go
    to one extra node, which is cut off at the end.
    """
    for step in steps:
        _check(step)
    step_C, place_C = _places([len(step.chunks) for step in steps])
    step_T, place_T = _places([len(step.triplets) for step in steps])
    step_K, _ = _places([len(step.entities) for step in steps])
    first_triplet = 1 + layout.chunks
    first_entity = first_triplet + layout.triplets
    nodes = first_entity + layout.entities

    def node(first: int, numbers: Iterable[list[int]]) -> Numbers:
        number_N = np.fromiter(chain.from_iterable(numbers), dtype=np.int64)
        return np.where(number_N == _ABSENT, nodes, first + number_N)

    title_C = node(first_entity, (of_step.titles for of_step in entities))
    head_T = node(first_entity, (of_step.heads for of_step in entities))
    tail_T = node(first_entity, (of_step.tails for of_step in entities))
    key_K = node(first_entity, (of_step.keys for of_step in entities))
    source_T = node(1, map(_sources, steps))
    chunk_C, triplet_T = 1 + place_C, first_triplet + place_T
    edges = [
        (step_C, chunk_C, title_C),
        (step_T, head_T, tail_T),
        (step_T, triplet_T, head_T),
        (step_T, triplet_T, tail_T),
        (step_T, source_T, triplet_T),
        (step_T, source_T, head_T),
        (step_T, source_T, tail_T),
    ]
    step_E, left_E, right_E = (np.concatenate(part) for part in zip(*edges, strict=True))
    score_C = np.array([chunk.score for step in steps for chunk in step.chunks], dtype=float)
    score_T = np.array([item.score for step in steps for item in step.triplets], dtype=float)
    weight_C = np.array([sigmoid(score) for score in score_C.tolist()])
    weight_T = np.array([max(sigmoid(score) - tau, 0) for score in score_T.tolist()])

    adjacency_BNN = np.zeros((len(steps), nodes + 1, nodes + 1))
    adjacency_BNN[step_E, left_E, right_E] = adjacency_BNN[step_E, right_E, left_E] = 1
    adjacency_BNN[step_C, 0, chunk_C] = adjacency_BNN[step_C, chunk_C, 0] = weight_C
    adjacency_BNN[step_T, 0, triplet_T] = adjacency_BNN[step_T, triplet_T, 0] = weight_T
    diagonal = np.arange(nodes)
    adjacency_BNN[:, diagonal, diagonal] = 0
    restart_BN = np.zeros((len(steps), nodes + 1))
    restart_BN[:, 0] = 1
    restart_BN[step_K, key_K] = KEY_ENTITY_RESTART
    score_BI = np.empty((len(steps), first_entity - 1))
    score_BI[step_C, place_C] = score_C
    score_BI[step_T, triplet_T - 1] = score_T
    return adjacency_BNN[:, :nodes, :nodes], restart_BN[:, :nodes], score_BI


def sigmoid(score: float) -> float:
    """1 / (1 + exp(-score)), without overflow."""
    if score >= 0:
        return 1 / (1 + math.exp(-score))
    power = math.exp(score)
    return power / (1 + power)


class _Entities(NamedTuple):
    """Entity numbers of one step; `_ABSENT` for a name without a key (`entity_key`)."""

    distinct: int
    titles: list[int]
    heads: list[int]
    tails: list[int]
    keys: list[int]


class _Layout(NamedTuple):
    """Numbers of nodes of the graphs of a batch, besides the subquery."""

    chunks: int
    triplets: int
    entities: int

    @classmethod
    def of(cls, step: Candidates, entities: _Entities) -> _Layout:
        """The layout of one step; entities are rounded up, so that few layouts occur."""
        rounded = -(-entities.distinct // _ENTITY_NODES) * _ENTITY_NODES
        return cls(len(step.chunks), len(step.triplets), rounded)


def _entities(step: Candidates) -> _Entities:
    names = [chunk.title for chunk in step.chunks]
    names += [triplet.head for triplet in step.triplets]
    names += [triplet.tail for triplet in step.triplets]
    names += step.entities
    identities = list(map(entity_key, names))
    number = {identity: index for index, identity in enumerate(dict.fromkeys(identities))}
    distinct = len(number)
    number[""] = _ABSENT
    numbers = [number[identity] for identity in identities]
    heads = len(step.chunks)
    tails = heads + len(step.triplets)
    keys = tails + len(step.triplets)
    return _Entities(
        distinct, numbers[:heads], numbers[heads:tails], numbers[tails:keys], numbers[keys:]
    )


def _sources(step: Candidates) -> list[int]:
    position: dict[str | None, int] = {chunk.id: n for n, chunk in enumerate(step.chunks)}
    return [position.get(triplet.chunk_id, _ABSENT) for triplet in step.triplets]


def _places(counts: Sequence[int]) -> tuple[Numbers, Numbers]:
    """For counts [2, 3]: the steps [0, 0, 1, 1, 1] and the positions within them [0, 1, 0, 1,
    2]."""
    step_N = np.repeat(np.arange(len(counts)), counts)
    first_B: Numbers = np.cumsum(counts) - np.array(counts)
    return step_N, np.arange(len(step_N)) - first_B[step_N]


def _check(step: Candidates) -> None:
    for kind, items in (("chunk", step.chunks), ("triplet", step.triplets)):
        if len({item.id for item in items}) < len(items):
            ids = [item.id for item in items]
            repeated = next(item_id for item_id in ids if ids.count(item_id) > 1)
            raise InputError(f"{kind} id {repeated!r} is repeated; make the ids distinct")
        for item in items:
            if item.score != item.score:
                raise InputError(
                    f"score of {kind} {item.id!r} is not a number; expected a raw score"
                )


def personalized_pagerank(adjacency_BNN: Doubles, restart_BN: Doubles, alpha: float) -> Doubles:
    """The fixed point π [B, N] of eq. 3 for each graph of a batch.

    ``adjacency_BNN`` has symmetric weights >= 0, ``restart_BN`` is p. Padding nodes have no edges
    and no restart, and get mass 0. Raises ValueError unless 0 < alpha < 1.
    """
    if not 0 < alpha < 1:
        raise ValueError(f"alpha is {alpha}; expected 0 < alpha < 1")
    degree_BN = adjacency_BNN.sum(axis=1)
    degree_BN[degree_BN == 0] = 1.0
    system_BNN = -alpha * adjacency_BNN
    nodes = np.arange(degree_BN.shape[1])
    # Added, not assigned, so that weights on the diagonal are kept.
    system_BNN[:, nodes, nodes] += degree_BN
    # LU solves a batch in one call. Cholesky would suffice, but LAPACK's dposv in a loop takes 8.1
    # us per graph of 45 nodes, hardly less than the 8.4 us of LU.
    solution_BN1 = np.linalg.solve(system_BNN, (1 - alpha) * restart_BN[..., None])
    mass_BN: Doubles = degree_BN * solution_BN1[..., 0]
    return mass_BN
