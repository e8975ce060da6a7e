"""Rank hyperedges by the informativeness of their entities (ProGraph-R1, section 3.2, eq. 6 to 10).

Input: the entities of each hyperedge and the hyperedges of each entity, the entities V_q of a
query, and the similarity s_v of entities to them. Output: hyperedges with scores. With E_q the
hyperedges that contain an entity of V_q::

    s_v      = cos(phi(v), mean of phi(u) for u in V_q)                              eq. 6
    I(v)     = log(1 + |{e in E_q: v in V_e}| / |{e in E: v in V_e}|)                eq. 7
    S^(v, e) = max(s_v, 0) / sum over u in V_e of max(s_u, 0), 0 when all are 0
    score(e) = sum over v in V_e of S^(v, e) I(v)                                    eq. 8, 9

Eq. 10 ranks all hyperedges E. Those with a score above 0 are hyperedges that share an entity with some
hyperedge of E_q, because I(v) is 0 for all other entities: E_q itself, and hyperedges outside it. With
V_q = {u} and the hyperedges {u, v} and f = {v, w}, I(v) is log 1.5, so f has a score although no entity
of the query is in it. `informativeness` scores all of these with ``every``. Without it, it scores only
E_q and the hyperedges of further entities that the caller names, which costs less where entities are in
very many hyperedges.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from pipeline.graph.adjacency import Adjacency, Rows

Doubles = NDArray[np.float64]
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
    *,
    every: bool = False,
) -> tuple[Rows, Doubles]:
    """The candidate hyperedges [C], ascending, and their scores [C] by eq. 6 to 9.

    ``query_entities`` is V_q. ``cosine(entities)`` returns s_v of distinct entities. The candidates are
    E_q, the hyperedges of ``further_entities``, and with ``every`` all hyperedges that share an entity
    with one of E_q; hyperedges that are no candidates then score 0.
    """
    [query_edges] = incidence.neighbours.union([sorted(set(query_entities))])
    inside, count = np.unique(incidence.members.gather(query_edges)[0], return_counts=True)
    sources = {*query_entities, *further_entities, *(inside.tolist() if every else ())}
    [edge_C] = incidence.neighbours.union([sorted(sources)])
    if not len(edge_C):
        return edge_C, np.zeros(0)
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


def _adjacency(rows: Sequence[Sequence[int]]) -> Adjacency:
    offsets = np.cumsum([0, *(len(values) for values in rows)])
    return Adjacency(offsets, np.array([v for values in rows for v in values], dtype=np.int64))
