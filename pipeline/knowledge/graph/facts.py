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

from pipeline.core.records import Hyperedge
from pipeline.knowledge.graph.build import Checked, Extracted, ratio, text_fault
from pipeline.knowledge.graph.entities import display, entity_key
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


@dataclass(slots=True)
class Facts(Checked):
    """Entities and counts of a hypergraph, filled while its facts pass through `edges`."""

    degrees: Counter[int] = field(default_factory=Counter)  # hyperedges per entity
    arity_max: int = 0  # most entities of a hyperedge

    def edges(self, extracted: Iterable[Extracted]) -> Iterator[tuple[Hyperedge, tuple[int, ...]]]:
        """Check and number facts in order; yields hyperedges with the numbers of their entities.

        Ids are ``<chunk id>:f<n>``. An entity that a fact names in two forms counts once. A fact
        that occurs twice in one chunk with the same entities is taken once.
        """
        for fact_id, chunk_id, fact in self.distinct(extracted, fact_fault, _fact, "f"):
            text, names = fact
            self.arity_max = max(self.arity_max, len(names))
            members = tuple(sorted(map(self.entities.add, names)))
            self.degrees.update(members)
            yield Hyperedge(fact_id, text, names, chunk_id), members

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
            **self.left_out(),
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


def _fact(value: tuple[str, Sequence[str]]) -> tuple[tuple[str, list[str]], Iterable[str]]:
    text, names = display(value[0]), _distinct(value[1])
    return (text, list(names.values())), (entity_key(text), *sorted(names))


def _distinct(names: Sequence[str]) -> dict[str, str]:
    """The first form of each entity, by key."""
    forms: dict[str, str] = {}
    for name in names:
        forms.setdefault(entity_key(name), display(name))
    return forms
