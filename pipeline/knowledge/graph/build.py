"""Build the knowledge graph from extracted triples (TeaRAG, arXiv 2511.05385, 4.1).

Input: `Extracted` triples from any source, each with the chunk that it came from. Output: a stream
of triplets with ids and entity numbers, and in `Graph` the entities, the rejected triples with
reasons, and statistics. A malformed triple is model output: it is rejected and counted, and raises
no error. Memory: the entity table, and 16 bytes per triplet to detect duplicates.

The paper's graph (table 5) has 130,931,564 triplets, 51,063,765 entities and a mean degree of 5.13
= 2 * triplets / entities: the degree of an entity counts the triplet ends that are that entity. The
mean out-degree of 9.24 averages over entities that are a head, the mean in-degree of 3.05 over
entities that are a tail.
"""

from __future__ import annotations

import re
from array import array
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

from pipeline.core.content_cache import digest
from pipeline.core.records import Triplet
from pipeline.knowledge.graph.entities import EntityTable, display, entity_key

T = TypeVar("T")
PARTS = ("head", "relation", "tail")
MAX_CHARACTERS = 1000  # of a name or relation; the longest in real output has a few hundred
# Control characters, and unpaired surrogates, which UTF-8 cannot encode.
_UNPRINTABLE = re.compile("[\x00-\x1f\x7f-\x9f\ud800-\udfff]")


@dataclass(frozen=True, slots=True)
class Extracted:
    """One extracted item, not yet checked.

    ``value`` should be [head, relation, tail], or [fact, [entity, ...]] for a hypergraph.
    """

    chunk_id: str | None  # None when no chunk of the corpus matches the source
    title: str  # title of the chunk or document
    value: Any
    fault: str | None = None  # set when the source is unusable; the item is rejected with it


@dataclass(frozen=True, slots=True)
class Reject:
    """An item that was not taken into the graph, and the reason."""

    chunk_id: str | None
    title: str
    reason: str
    value: Any


@dataclass(slots=True)
class Checked:
    """Entities and counts of a graph or hypergraph, filled while its items pass through."""

    entities: EntityTable = field(default_factory=EntityTable)
    per_chunk: Counter[str] = field(default_factory=Counter)  # items by chunk id
    rejects: list[Reject] = field(default_factory=list)
    duplicates: int = 0  # items that repeat one of the same chunk

    def distinct(
        self,
        extracted: Iterable[Extracted],
        fault: Callable[[Any], str | None],
        read: Callable[[Any], tuple[T, Iterable[str]]],
        mark: str = "",
    ) -> Iterator[tuple[str, str, T]]:
        """Yield id, chunk id and value of every item without a fault, each once in its chunk.

        ``fault`` returns the reason to reject a value, or None; ``read`` the value of an item, and
        what it has in common with its repeats. Ids are ``<chunk id>:<mark><n>``.
        """
        seen: set[bytes] = set()
        for item in extracted:
            reason = item.fault or fault(item.value)
            if reason is not None or item.chunk_id is None:
                reject = Reject(item.chunk_id, item.title, reason or "no chunk", item.value)
                self.rejects.append(reject)
                continue
            value, common = read(item.value)
            if (identity := digest(item.chunk_id, *common)) in seen:
                self.duplicates += 1
                continue
            seen.add(identity)
            number = self.per_chunk[item.chunk_id]
            self.per_chunk[item.chunk_id] += 1
            yield f"{item.chunk_id}:{mark}{number}", item.chunk_id, value

    def left_out(self) -> dict[str, int]:
        """The numbers of duplicates and of rejects, in total and per reason."""
        reasons = Counter(reject.reason for reject in self.rejects)
        return {
            "duplicates": self.duplicates,
            "rejects": len(self.rejects),
            **{f"rejects: {reason}": count for reason, count in sorted(reasons.items())},
        }


@dataclass(slots=True)
class Graph(Checked):
    """Entities and counts of a graph, filled while its triplets pass through `edges`."""

    degrees: array[int] = field(default_factory=lambda: array("q"))  # triplet ends per entity
    heads: bytearray = field(default_factory=bytearray)  # 1 for entities that are a head
    tails: bytearray = field(default_factory=bytearray)  # 1 for entities that are a tail

    def edges(self, extracted: Iterable[Extracted]) -> Iterator[tuple[Triplet, tuple[int, ...]]]:
        """Check and number triples in order; yields triplets with the numbers of their entities.

        Triplets keep their surface forms (white space collapsed); their id is ``<chunk id>:<n>``. A
        triple that occurs twice in one chunk (by `entity_key`) is taken once; the same triple of
        another chunk is taken again.
        """
        for name, chunk_id, parts in self.distinct(extracted, triple_fault, _triple):
            head, relation, tail = parts
            ends = self._end(head, self.heads), self._end(tail, self.tails)
            yield Triplet(name, head, relation, tail, chunk_id), tuple(dict.fromkeys(ends))

    def statistics(self) -> dict[str, int | float]:
        """Counts, degrees (table 5) and rejects by reason, in one flat dictionary."""
        entities, triplets = len(self.entities), self.per_chunk.total()
        return {
            "entities": entities,
            "triplets": triplets,
            "degree_mean": ratio(2 * triplets, entities),
            "out_degree_mean": ratio(triplets, sum(self.heads)),
            "in_degree_mean": ratio(triplets, sum(self.tails)),
            "degree_max": max(self.degrees, default=0),
            "chunks_with_triplets": len(self.per_chunk),
            **self.left_out(),
        }

    def _end(self, surface: str, role: bytearray) -> int:
        number = self.entities.add(surface)
        if number == len(self.degrees):
            for column in (self.degrees, self.heads, self.tails):
                column.append(0)
        self.degrees[number] += 1
        role[number] = 1
        return number


def build_graph(extracted: Iterable[Extracted]) -> tuple[Graph, list[Triplet]]:
    """The graph and all its triplets in memory; for small inputs."""
    graph = Graph()
    return graph, [triplet for triplet, _ in graph.edges(extracted)]


def _triple(value: Sequence[str]) -> tuple[list[str], Iterable[str]]:
    parts = [display(part) for part in value]
    return parts, map(entity_key, parts)


def ratio(numerator: int, denominator: int) -> float:
    """The ratio, rounded to four decimals; 0 when the denominator is 0."""
    return round(numerator / denominator, 4) if denominator else 0.0


def triple_fault(value: Any) -> str | None:
    """The reason why a value is not a triple; None when it is one."""
    if not isinstance(value, list | tuple):
        return "not a list"
    if len(value) != 3:
        return f"length {len(value)}"
    faults = (text_fault(part, text) for part, text in zip(PARTS, value, strict=True))
    return next((fault for fault in faults if fault is not None), None)


def text_fault(part: str, text: Any) -> str | None:
    """The reason why a value cannot name an entity or a relation; None when it can."""
    if not isinstance(text, str):
        return f"{part} is not a string"
    if len(text) > MAX_CHARACTERS:
        return f"{part} is over-long"
    if _UNPRINTABLE.search(display(text)):
        return f"{part} has control characters"
    # Text of quotes or invisible characters only has no identity as an entity.
    visible = any(char.isprintable() and not char.isspace() for char in text)
    return None if visible and entity_key(text) else f"{part} is empty"
