"""Build the hypergraph from n-ary facts (ProGraph-R1 3.1).

A hyperedge e is a fact in natural language with the set V_e of its two or more entities. Input:
`Extracted` items [fact, [entity, ...]] from any source; `FACTS` is the prompt for a language model
(`graph.extract`). Output: a stream of hyperedges with ids and entity numbers, and in `Facts` the
entities, the rejected items with reasons, and statistics. Entities are identified as in the graph
(`graph.entities`).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from pipeline.core.content_cache import digest
from pipeline.core.records import Hyperedge
from pipeline.knowledge.graph.build import Extracted, Reject, accepted, by_reason, ratio, text_fault
from pipeline.knowledge.graph.entities import EntityTable, display, entity_key
from pipeline.knowledge.graph.extract import EXAMPLE, ExtractionPrompt

FACTS = ExtractionPrompt(
    system=(
        "You turn a passage into facts. Write every fact that the passage states as [fact, "
        "[entity, ...]]. The fact is one sentence that can be understood without the passage: "
        "names instead of pronouns, with time, place and condition where the passage gives them. "
        "The entities are all names, dates, numbers or short noun phrases that take part in the "
        "fact, at least two, worded as in the fact. Answer with one JSON list of such pairs and "
        "nothing else; [] if there is no fact."
    ),
    example=EXAMPLE,
    answer=(
        '[["Lake Tovel is a lake in Trentino, Italy, at an elevation of 1,178 m.", '
        '["Lake Tovel", "Trentino", "Italy", "1,178 m"]], '
        '["Until 1964 Lake Tovel turned red every summer.", ["Lake Tovel", "1964"]], '
        '["The alga that turned Lake Tovel red was named by Giuseppe Largaiolli in 1907.", '
        '["alga of Lake Tovel", "Lake Tovel", "Giuseppe Largaiolli", "1907"]]]'
    ),
    max_tokens=1536,
)


@dataclass(frozen=True, slots=True)
class Fact:
    """A hyperedge and the numbers of its entities, ascending."""

    hyperedge: Hyperedge
    members: tuple[int, ...]


@dataclass(slots=True)
class Facts:
    """Entities and counts of a hypergraph, filled while its facts pass through `edges`."""

    entities: EntityTable = field(default_factory=EntityTable)
    degrees: Counter[int] = field(default_factory=Counter)  # hyperedges per entity
    per_chunk: Counter[str] = field(default_factory=Counter)  # hyperedges by chunk id
    rejects: list[Reject] = field(default_factory=list)
    arity_max: int = 0  # most entities of a hyperedge
    duplicates: int = 0  # facts that repeat a hyperedge of the same chunk

    def edges(self, extracted: Iterable[Extracted]) -> Iterator[Fact]:
        """Check and number facts in order.

        Ids are ``<chunk id>:f<n>``. An entity that a fact names in two forms counts once. A fact
        that occurs twice in one chunk with the same entities is taken once.
        """
        seen: set[bytes] = set()
        for chunk_id, value in accepted(extracted, fact_fault, self.rejects):
            text, names = display(value[0]), _distinct(value[1])
            identity = digest(chunk_id, entity_key(text), *sorted(names))
            if identity in seen:
                self.duplicates += 1
                continue
            seen.add(identity)
            fact_id = f"{chunk_id}:f{self.per_chunk[chunk_id]}"
            self.per_chunk[chunk_id] += 1
            self.arity_max = max(self.arity_max, len(names))
            members = tuple(sorted(self.entities.add(name) for name in names.values()))
            self.degrees.update(members)
            yield Fact(Hyperedge(fact_id, text, list(names.values()), chunk_id), members)

    def statistics(self) -> dict[str, int | float]:
        """Counts, entities per fact, facts per entity and rejects by reason, in one flat
        dictionary."""
        ends, hyperedges = self.degrees.total(), self.per_chunk.total()
        return {
            "entities": len(self.entities),
            "hyperedges": hyperedges,
            "arity_mean": ratio(ends, hyperedges),
            "arity_max": self.arity_max,
            "degree_mean": ratio(ends, len(self.entities)),
            "degree_max": max(self.degrees.values(), default=0),
            "chunks_with_hyperedges": len(self.per_chunk),
            "duplicates": self.duplicates,
            **by_reason(self.rejects),
        }


def fact_fault(value: Any) -> str | None:
    """The reason why a value is not an n-ary fact; None when it is one."""
    if not isinstance(value, list | tuple):
        return "not a list"
    if len(value) != 2:
        return f"length {len(value)}"
    text, names = value
    if not isinstance(names, list | tuple):
        return "entities are not a list"
    for part, item in (("fact", text), *(("entity", name) for name in names)):
        fault = text_fault(part, item)
        if fault is not None:
            return fault
    return "fewer than two entities" if len(_distinct(names)) < 2 else None


def _distinct(names: Sequence[str]) -> dict[str, str]:
    """The first form of each entity, by key."""
    forms: dict[str, str] = {}
    for name in names:
        forms.setdefault(entity_key(name), display(name))
    return forms
