"""Rank hyperedges by the informativeness of their entities (ProGraph-R1, section 3.2, eq. 6 to 10).

Input: the entities of each hyperedge and the hyperedges of each entity, the entities V_q of a
query, and the similarity s_v of entities to them. Output: hyperedges with scores. With E_q the
hyperedges that contain an entity of V_q::

    s_v      = cos(phi(v), mean of phi(u) for u in V_q)                              eq. 6
    I(v)     = log(1 + |{e in E_q: v in V_e}| / |{e in E: v in V_e}|)                eq. 7
    S^(v, e) = max(s_v, 0) / sum over u in V_e of max(s_u, 0), 0 when all are 0
    score(e) = sum over v in V_e of S^(v, e) I(v)                                    eq. 8, 9

Eq. 10 ranks all hyperedges E. Every hyperedge with a score above 0 shares an entity with a
hyperedge of E_q, because I(v) is 0 for all other entities. It need not be in E_q itself: with V_q =
{u} and the hyperedges {u, v} and f = {v, w}, I(v) is log 1.5, so f has a score although it has no
entity of the query. `informativeness` scores only E_q and the hyperedges of entities that the
caller names. `informativeness_over_all` scores as many more as the best k of E need. S^ sums to 1
within a hyperedge, so no score exceeds the largest I(v) of its entities. Entities are therefore
followed in the order of I(v) until the next one is below the k-th best score. Frequent entities,
whose hyperedges are many, come last.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from pipeline.knowledge.graph.adjacency import Adjacency, Rows

Doubles = NDArray[np.float64]
FIRST_PASS = 256  # hyperedges that `informativeness_over_all` adds to few candidates at once
DECIMALS = 12  # scores that agree to 12 decimals are ties: the order of a sum changes the last bits


@dataclass(frozen=True, slots=True)
class Incidence:
    """The incidence of entities and hyperedges, in both directions."""

    members: Adjacency  # the entities of each hyperedge
    neighbours: Adjacency  # the hyperedges of each entity

    @classmethod
    def of(cls, members: Sequence[Iterable[int]], entities: int) -> Incidence:
        """Build in memory from the entities of every hyperedge, numbers below ``entities``."""
        distinct = [sorted(set(edge_entities)) for edge_entities in members]
        of_entity: list[list[int]] = [[] for _ in range(entities)]
        for edge, edge_entities in enumerate(distinct):
            for entity in edge_entities:
                of_entity[entity].append(edge)
        return cls(_adjacency(distinct), _adjacency(of_entity))


def informativeness(
    incidence: Incidence,
    query_entities: Sequence[int],
    cosine: Callable[[Rows], NDArray[np.floating]],
    further_entities: Sequence[int] = (),
) -> tuple[Rows, Doubles]:
    """The candidate hyperedges [C], ascending, and their scores [C] by eq. 6 to 9.

    ``query_entities`` is V_q. ``cosine(entities)`` returns s_v of distinct entities.
    ``further_entities`` add their hyperedges to the candidates.
    """
    [edge_C] = incidence.neighbours.union([sorted({*query_entities, *further_entities})])
    if not len(edge_C):
        return edge_C, np.zeros(0)
    inside, count = _inside(incidence, query_entities)
    member_M, length_C = incidence.members.gather(edge_C)
    entity_U, place_M = np.unique(member_M, return_inverse=True)
    shared_U = np.zeros(len(entity_U))
    shared_U[np.searchsorted(entity_U, inside)] = count  # E_q is among the candidates
    informative_U = np.log1p(shared_U / incidence.neighbours.degrees(entity_U))
    similar_U = np.maximum(np.asarray(cosine(entity_U), dtype=np.float64), 0)
    first_C = np.cumsum(length_C) - length_C
    weight_C = np.add.reduceat(similar_U[place_M], first_C)
    sum_C = np.add.reduceat((similar_U * informative_U)[place_M], first_C)
    score_C = np.divide(sum_C, weight_C, out=np.zeros_like(sum_C), where=weight_C > 0)
    return edge_C, score_C


def informativeness_over_all(
    incidence: Incidence,
    query_entities: Sequence[int],
    cosine: Callable[[Rows], NDArray[np.floating]],
    further_entities: Sequence[int] = (),
    *,
    top_k: int,
) -> tuple[Rows, Doubles]:
    """As `informativeness`, with all hyperedges that can be among the ``top_k`` best of E (eq. 10).

    Hyperedges with a score of 0 are candidates only as in `informativeness`.
    """
    inside, count = _inside(incidence, query_entities)
    degree = incidence.neighbours.degrees(inside)
    bound = np.log1p(count / degree)
    order = np.argsort(-bound, kind="stable")
    entities, bounds, hyperedges = inside[order].tolist(), bound[order], np.cumsum(degree[order])
    followed = 0
    while True:
        edges, scores = informativeness(
            incidence, query_entities, cosine, [*further_entities, *entities[:followed]]
        )
        lowest = np.partition(scores, -top_k)[-top_k] if len(scores) >= top_k else 0.0
        # Scores within the rounding of `best_edges` are ties, which its ids decide.
        needed = int(np.count_nonzero(bounds >= lowest - 10.0**-DECIMALS))
        if followed >= needed:
            return edges, scores
        # All hyperedges are scored again, so each pass at most triples them: later bounds are
        # tighter.
        before = hyperedges[followed - 1] if followed else 0
        room = before + max(2 * len(edges), FIRST_PASS)
        affordable = int(np.searchsorted(hyperedges, room, side="right"))
        followed = min(max(affordable, followed + 1), needed)


def cosine_to_mean(
    vectors: NDArray[np.floating], query_entities: Sequence[int]
) -> Callable[[Rows], NDArray[np.floating]]:
    """A function that returns s_v (eq. 6) of rows of ``vectors`` [V, D]; 0 for a zero vector.

    The vectors need not be normalized.
    """
    mean_D = np.asarray(vectors[list(query_entities)], dtype=np.float64).mean(axis=0)
    mean_D = mean_D / (np.linalg.norm(mean_D) or 1.0)

    def cosine(entities: Rows) -> NDArray[np.floating]:
        rows = np.asarray(vectors[entities], dtype=np.float64)
        norm = np.linalg.norm(rows, axis=1)
        product = rows @ mean_D
        similar: Doubles = np.divide(product, norm, out=np.zeros_like(product), where=norm > 0)
        return similar

    return cosine


def best_edges(
    edges: Rows, scores: Doubles, ids: Callable[[int], str], top_k: int
) -> list[tuple[int, float]]:
    """The ``top_k`` best (hyperedge, score), best first, ties by id (eq. 10)."""
    rounded = np.round(scores, DECIMALS)
    if len(edges) > top_k:  # ids are looked up only for edges that can be among the best
        kept = np.flatnonzero(rounded >= np.partition(rounded, -top_k)[-top_k])
        edges, scores, rounded = edges[kept], scores[kept], rounded[kept]
    rows = zip(edges.tolist(), scores.tolist(), rounded.tolist(), strict=True)
    order = sorted(rows, key=lambda row: (-row[2], ids(row[0])))[:top_k]
    return [(edge, score) for edge, score, _ in order]


def _inside(incidence: Incidence, query_entities: Sequence[int]) -> tuple[Rows, Rows]:
    """The entities of E_q, ascending, and the number of hyperedges of E_q that each is in."""
    [query_edges] = incidence.neighbours.union([sorted(set(query_entities))])
    return np.unique(incidence.members.gather(query_edges)[0], return_counts=True)


def _adjacency(rows: Sequence[Sequence[int]]) -> Adjacency:
    offsets = np.cumsum([0, *(len(values) for values in rows)])
    return Adjacency(offsets, np.array([v for values in rows for v in values], dtype=np.int64))
