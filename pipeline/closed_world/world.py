"""The closed world: generated entities, facts and documents with complete ground truth.

Purpose: a corpus that is generated in a fraction of a second. Tests need no download, a reader can
be trained on any number of worlds, and every judgment has an exact answer. Input: a seed and a
number of documents. Output: a `World`. Every binary relation is functional; a chain of facts
therefore has one answer. A famous core of 60 entities is the same in every world. A reader that was
trained on many worlds knows its facts without retrieval, which makes over-search measurable
(HiPRAG, arXiv 2510.07794).
"""

from __future__ import annotations

import random
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import chain

from pipeline.closed_world.documents import write_documents
from pipeline.closed_world.fact_generation import (
    FACTS_PER_PAGE,
    NO_NEAR_MISSES,
    FactGenerator,
    NearMisses,
    famous_core,
    make_entities,
)
from pipeline.closed_world.names import NameGenerator
from pipeline.closed_world.schema import RELATIONS, AnyFact, Document, Entity, Fact, NaryFact
from pipeline.core.errors import InputError

__all__ = ["Document", "Entity", "Fact", "NaryFact", "World", "generate_world"]

MIN_DOCUMENTS = 200
ENTITIES_PER_DOCUMENT = 0.72


@dataclass(frozen=True)
class World:
    """A generated world; all collections are in the order of generation.

    Attributes:
        seed: from which the world was generated.
        entities: by id.
        facts: binary facts by id, "<head>/<relation>".
        nary: n-ary facts by id.
        documents: in corpus order.
    """

    seed: int
    entities: dict[str, Entity]
    facts: dict[str, Fact]
    nary: dict[str, NaryFact]
    documents: tuple[Document, ...]

    @cached_property
    def _facts_about(self) -> dict[str, list[Fact]]:
        about: dict[str, list[Fact]] = {}
        for fact in self.facts.values():
            about.setdefault(fact.head, []).append(fact)
        return about

    @cached_property
    def _documents_of(self) -> dict[str, list[Document]]:
        stating: dict[str, list[Document]] = {}
        for document in self.documents:
            for fact_id in dict.fromkeys(chain.from_iterable(document.facts)):
                stating.setdefault(fact_id, []).append(document)
        return stating

    @cached_property
    def _named(self) -> dict[str, dict[str, None]]:
        named: dict[str, dict[str, None]] = {}
        for entity in self.entities.values():
            for surface in (entity.name, *entity.aliases):
                named.setdefault(surface.casefold(), {})[entity.id] = None
        return named

    def entities_named(self, surface: str) -> tuple[str, ...]:
        """Ids of the entities with this name or alias, regardless of case."""
        return tuple(self._named.get(surface.casefold(), ()))

    def fact_of(self, head: str, relation: str) -> Fact | None:
        """The fact with this head (entity id) and relation key; None when there is none."""
        return self.facts.get(f"{head}/{relation}")

    def fact(self, key: str) -> AnyFact:
        """The binary or n-ary fact with this id."""
        return self.facts.get(key) or self.nary[key]

    def entities_of(self, fact: AnyFact) -> tuple[str, ...]:
        """Ids of the entities among the arguments of a fact, in their order."""
        return tuple(value for _, value in fact.arguments if value in self.entities)

    def documents_of(self, fact: str) -> Sequence[Document]:
        """The documents that state the binary or n-ary fact with this id, in corpus order."""
        return self._documents_of.get(fact, ())

    def surface(self, tail: str) -> str:
        """The text of a tail: the entity's name, or the literal itself."""
        entity = self.entities.get(tail)
        return tail if entity is None else entity.name

    def chains(
        self,
        rng: random.Random,
        hops: int,
        n: int,
        heads: Collection[str] | None = None,
        *,
        within: Collection[str] | None = None,
    ) -> list[tuple[Fact, ...]]:
        """Distinct chains of facts in which every tail is the next head and no entity repeats.

        Args:
            rng: source of randomness.
            hops: facts per chain, at least 1.
            n: number of chains; fewer are returned if the world has too few.
            heads: entity ids at which a chain may start; all by default.
            within: entity ids that a chain may contain; all by default.
        """
        allowed = None if within is None else frozenset(within)
        pool = [
            head
            for head in (self._facts_about if heads is None else heads)
            if head in self._facts_about and (allowed is None or head in allowed)
        ]
        chains: dict[tuple[str, ...], tuple[Fact, ...]] = {}
        for _ in range(n * 100 + 1000 if pool else 0):
            if len(chains) == n:
                break
            found = self._walk(rng, pool[int(rng.random() * len(pool))], hops, allowed)
            if found:
                chains.setdefault(tuple(fact.id for fact in found), found)
        return list(chains.values())

    def _walk(
        self, rng: random.Random, head: str, hops: int, allowed: frozenset[str] | None
    ) -> tuple[Fact, ...]:
        facts: list[Fact] = []
        seen = {head}
        for hop in range(1, hops + 1):
            options = [
                fact
                for fact in self._facts_about.get(head, ())
                if fact.tail not in seen
                and (
                    hop == hops
                    if RELATIONS[fact.relation].literal
                    else allowed is None or fact.tail in allowed
                )
            ]
            if not options:
                return ()
            facts.append(options[int(rng.random() * len(options))])
            head = facts[-1].tail
            seen.add(head)
        return tuple(facts)


def _entities_with_two_pages(
    rng: random.Random, entities: Sequence[Entity], count: int
) -> set[str]:
    """Ids of `count` entities that get two documents, mostly persons, who have the most facts."""
    persons = [entity.id for entity in entities if entity.type == "person"]
    others = [entity.id for entity in entities if entity.type in ("film", "city", "book")]
    num_persons = min(int(count * 0.65), len(persons))
    return {*rng.sample(persons, num_persons), *rng.sample(others, count - num_persons)}


def generate_world(
    seed: int, *, documents: int = 1500, near_misses: NearMisses = NO_NEAR_MISSES
) -> World:
    """A world with exactly `documents` documents, in time and memory linear in this number.

    Args:
        seed: any integer; the same seed gives the same world on every machine.
        documents: number of documents of 20 to 45 words, at least `MIN_DOCUMENTS`.
        near_misses: what makes wrong answers partly or accidentally right.

    Raises:
        InputError: `documents` is too small for the famous core and its surroundings.
    """
    if documents < MIN_DOCUMENTS:
        raise InputError(
            f"documents is {documents}; a closed world needs at least {MIN_DOCUMENTS}; raise it"
        )
    rng = random.Random(f"closed world {seed}")
    core = famous_core()
    namer = NameGenerator({entity.name.casefold() for entity in core.entities})
    count = int(documents * ENTITIES_PER_DOCUMENT)
    new_entities = make_entities(
        rng, namer, count - len(core.entities), "",
        famous=False, family_share=near_misses.family_share,
    )  # fmt: skip
    two_pages = _entities_with_two_pages(rng, new_entities, documents - count)
    generator = FactGenerator(rng, new_entities, core.entities, near_misses.common_share)
    new_facts = [
        fact
        for entity in new_entities
        for fact in generator.facts(entity, FACTS_PER_PAGE * (2 if entity.id in two_pages else 1))
    ]
    nary = {fact.id: fact for fact in (*core.nary, *generator.nary(new_facts))}
    entities = {entity.id: entity for entity in (*core.entities, *new_entities)}
    facts = {fact.id: fact for fact in (*core.facts, *new_facts)}
    pages = write_documents(rng, entities, facts.values(), nary.values(), two_pages)
    return World(seed, entities, facts, nary, pages)
