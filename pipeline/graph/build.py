"""From extracted triples to the graph's tables (TeaRAG 4.1).

Purpose: check every triple, number entities, count. Input: `Extracted` triples, each with the chunk
it came from, whatever produced them. Output: triplets with ids and the numbers of their entities,
one after the other, and in `Graph` the entities, rejected triples with reasons, and statistics.
Output of a language model is data: a triple that is none is counted and kept aside, never an
exception. Memory: the entity table, and 16 bytes of digest per triplet to know repetitions by.

The paper's graph (table 5): 130,931,564 triplets, 51,063,765 entities, mean degree 5.13, which is
2 * triplets / entities: a degree counts the ends of triplets that meet in an entity.
"""

from __future__ import annotations

from array import array
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

from pipeline.graph.entities import EntityTable, display, entity_key
from pipeline.index.cache import digest
from pipeline.records import Triplet

PARTS = ("head", "relation", "tail")


@dataclass(frozen=True, slots=True)
class Extracted:
    """One extracted item, not yet checked: ``value`` should be [head, relation, tail].

    With ``fault`` set the source itself could not be used (an unparsable answer, a document that is
    not in the corpus), and the item is rejected for that reason.
    """

    chunk_id: str | None
    title: str
    value: Any
    fault: str | None = None


@dataclass(frozen=True, slots=True)
class Reject:
    """What was not taken into the graph, and why."""

    chunk_id: str | None
    title: str
    reason: str
    value: Any


@dataclass(frozen=True, slots=True)
class Edge:
    """A triplet of the graph and the entities that it joins, by number."""

    triplet: Triplet
    head: int
    tail: int


@dataclass(slots=True)
class Graph:
    """What is known of a graph while its triplets pass through `edges`.

    ``degrees[e]`` counts the ends of triplets that meet in entity e; ``per_chunk`` triplets by
    chunk id; ``duplicates`` repeated a triplet of the same chunk.
    """

    entities: EntityTable = field(default_factory=EntityTable)
    degrees: array[int] = field(default_factory=lambda: array("q"))
    per_chunk: Counter[str] = field(default_factory=Counter)
    rejects: list[Reject] = field(default_factory=list)
    triplets: int = 0
    duplicates: int = 0

    def edges(self, extracted: Iterable[Extracted]) -> Iterator[Edge]:
        """Check and number triples in order.

        Triplets keep their surface forms (white space collapsed); their id is ``<chunk id>:<n>``.
        The same triple (by entity identity) from the same chunk counts once, from another again.
        """
        seen: set[bytes] = set()
        for item in extracted:
            reason = item.fault or fault_of(item.value)
            if reason is not None or item.chunk_id is None:
                self.rejects.append(
                    Reject(item.chunk_id, item.title, reason or "no chunk", item.value)
                )
                continue
            head, relation, tail = (display(part) for part in item.value)
            identity = digest(item.chunk_id, *map(entity_key, (head, relation, tail)))
            if identity in seen:
                self.duplicates += 1
                continue
            seen.add(identity)
            name = f"{item.chunk_id}:{self.per_chunk[item.chunk_id]}"
            self.per_chunk[item.chunk_id] += 1
            self.triplets += 1
            yield Edge(
                Triplet(name, head, relation, tail, item.chunk_id),
                self._end(head),
                self._end(tail),
            )

    def statistics(self) -> dict[str, int | float]:
        """Counts, mean and maximum degree, and rejects by reason; flat, for the report."""
        reasons = Counter(one.reason for one in self.rejects)
        entities = len(self.entities)
        return {
            "entities": entities,
            "triplets": self.triplets,
            "degree_mean": round(2 * self.triplets / entities, 4) if entities else 0.0,
            "degree_max": max(self.degrees, default=0),
            "chunks_with_triplets": len(self.per_chunk),
            "duplicates": self.duplicates,
            "rejects": len(self.rejects),
            **{f"rejects: {reason}": count for reason, count in sorted(reasons.items())},
        }

    def _end(self, surface: str) -> int:
        number = self.entities.add(surface)
        if number == len(self.degrees):
            self.degrees.append(0)
        self.degrees[number] += 1
        return number


def build_graph(extracted: Iterable[Extracted]) -> tuple[Graph, list[Triplet]]:
    """A graph that is small enough to hold its triplets in memory."""
    graph = Graph()
    return graph, [edge.triplet for edge in graph.edges(extracted)]


def fault_of(value: Any) -> str | None:
    """Why a value is no triple; None when it is one."""
    if not isinstance(value, list | tuple):
        return "not a list"
    if len(value) != 3:
        return f"length {len(value)}"
    for part, text in zip(PARTS, value, strict=True):
        if not isinstance(text, str):
            return f"{part} is not a string"
        # An entity of nothing but quotes has no identity; a relation needs some text.
        if not entity_key(text):
            return f"{part} is empty"
    return None
