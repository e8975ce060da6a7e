"""The association graph of a step, drawn from what the run recorded.

Input: a step, and the facts behind its triplets. Output: nodes with positions and edges, by the
rules of TeaRAG (arXiv 2511.05385, 4.2.4): the subquery, key entities, retrieved chunks and
triplets, and the entities at the ends of triplets and in titles. The record keeps the items that
were inserted with their PageRank mass, so the drawing has these and no candidate that was left out.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from pipeline.core.records import Step, Triplet
from pipeline.graph.entities import entity_key

Kind = Literal["query", "chunk", "triplet", "hyperedge", "entity"]
WIDTH, HEIGHT = 860, 620
_LARGEST, _SMALLEST = 30.0, 8.0  # radius in pixels


@dataclass(frozen=True)
class Node:
    """One node; ``mass`` is the recorded PageRank mass or score, or None."""

    key: str
    kind: Kind
    label: str
    mass: float | None
    x: float
    y: float
    radius: float
    key_entity: bool = False


@dataclass(frozen=True)
class AssociationGraph:
    """Nodes by key, and edges as pairs of keys."""

    nodes: Mapping[str, Node]
    edges: list[tuple[str, str]]


def association_graph(
    step: Step, facts: Mapping[str, Triplet], hyperedges: Mapping[str, Sequence[str]]
) -> AssociationGraph:
    """The graph of a step; ``facts`` are the triplets of its context by id.

    ``hyperedges`` are the entities of its n-ary facts by id.
    """
    query = step.subquery or step.search or step.query or ""
    edges = dict[tuple[str, str], None]()
    entities = dict[str, str]()
    keys = [_entity(name, entities) for name in step.entities]
    items = [f"item:{place}" for place in range(len(step.context))]
    by_id = {item.id: key for item, key in zip(step.context, items, strict=True) if item.id}
    for item, key in zip(step.context, items, strict=True):
        edges["query", key] = None
        if item.title:
            edges[key, _entity(item.title, entities)] = None
        members = [_entity(name, entities) for name in hyperedges.get(item.id, ())]
        edges |= dict.fromkeys((key, member) for member in members)
        fact = facts.get(item.id)
        if fact is not None:
            head, tail = _entity(fact.head, entities), _entity(fact.tail, entities)
            edges |= dict.fromkeys([(key, head), (key, tail), (head, tail)])
            if source := by_id.get(fact.chunk_id):
                edges |= dict.fromkeys([(source, key), (source, head), (source, tail)])
    known = {"query", *items, *entities}
    ends = [(a, b) for a, b in edges if a != b and {a, b} <= known]
    masses = [item.score for item in step.context]
    largest = max((mass for mass in masses if math.isfinite(mass)), default=0.0)
    nodes = {"query": Node("query", "query", query, None, WIDTH / 2, HEIGHT / 2, 16)}
    for (item, key), (x, y) in zip(
        zip(step.context, items, strict=True), _circle(len(items), 0.24), strict=True
    ):
        radius = _radius(item.score, largest)
        label = item.title or item.text
        nodes[key] = Node(key, item.kind, label, item.score, x, y, radius)
    order = _near_their_items(entities, ends, items)
    for key, (x, y) in zip(order, _circle(len(order), 0.42), strict=True):
        nodes[key] = Node(key, "entity", entities[key], None, x, y, _SMALLEST, key in keys)
    return AssociationGraph(nodes, ends)


def _entity(name: str, entities: dict[str, str]) -> str:
    """Add an entity node and return its key; names without a key (`entity_key`) have no node."""
    identity = entity_key(name)
    if not identity:
        return ""
    entities.setdefault(f"entity:{identity}", name)
    return f"entity:{identity}"


def _radius(mass: float, largest: float) -> float:
    """The area of a node is proportional to its mass."""
    if not (math.isfinite(mass) and mass > 0 and largest > 0):
        return _SMALLEST
    return max(_SMALLEST, _LARGEST * math.sqrt(mass / largest))


def _circle(count: int, share: float) -> list[tuple[float, float]]:
    """Positions on an ellipse around the subquery; its radii are ``share`` of width and height."""
    angles = [2 * math.pi * place / count - math.pi / 2 for place in range(count)]
    return [
        (WIDTH / 2 + share * WIDTH * math.cos(a), HEIGHT / 2 + share * HEIGHT * math.sin(a))
        for a in angles
    ]


def _near_their_items(
    entities: Mapping[str, str], edges: Iterable[tuple[str, str]], items: list[str]
) -> list[str]:
    """Entities in the order of the items that they belong to, so that few edges cross."""
    places: dict[str, list[float]] = {key: [] for key in entities}
    position = {key: place for place, key in enumerate(items)}
    for a, b in edges:
        for item, entity in ((a, b), (b, a)):
            if item in position and entity in places:
                places[entity].append(position[item])
    mean = {key: sum(at) / len(at) if at else len(items) for key, at in places.items()}
    return sorted(entities, key=lambda key: mean[key])
