"""Documents of the closed world: short, varied, with distracting facts.

Purpose: turn facts into the corpus. Input: entities, facts, and the entities with two pages.
Output: one or two `Document`s per entity, of 20 to 45 words in 2 to 4 sentences. The pages of an
entity state each of its facts once. The remaining room is filled with facts of related entities and
with sentences that state no fact. About a fifth of all facts is thus stated in two documents, in
different words.
"""

from __future__ import annotations

import random
from collections.abc import Collection, Iterator, Mapping, Sequence
from itertools import chain

from pipeline.closed_world.names import draw_phrase
from pipeline.closed_world.schema import (
    ALL_RELATIONS,
    VOCABULARY,
    AnyFact,
    Document,
    Entity,
    Fact,
    NaryFact,
)

MIN_WORDS, MAX_WORDS = 20, 45
MAX_SENTENCES = 4
RESTATED_SHARE = 0.2

_JOIN_SHARE = 0.15
_ALIAS_SHARE = 0.12
# Number of words from which no further sentence is added; a sentence has at most 13 words.
_FULL = MAX_WORDS - 13
_FILLERS: dict[str, list[str]] = VOCABULARY["fillers"]  # by type of entity


class _Writer:
    """Writes pages; remembers the first wording of each fact so that a restatement differs."""

    def __init__(
        self,
        rng: random.Random,
        entities: Mapping[str, Entity],
        facts: Collection[Fact],
        nary: Collection[NaryFact],
    ) -> None:
        self.rng = rng
        self.entities = entities
        self.names = {entity.id: entity.name for entity in entities.values()}
        # Facts by the id of their head, and by the ids of all their other entities.
        self.facts_by_head: dict[str, list[AnyFact]] = {key: [] for key in entities}
        self.facts_by_other: dict[str, list[AnyFact]] = {key: [] for key in entities}
        all_facts: list[AnyFact] = [*facts, *nary]
        for fact in all_facts:
            self.facts_by_head[fact.head].append(fact)
            for _, value in fact.arguments:
                # For a marriage, the spouse has an equivalent fact.
                if value in entities and value != fact.head and fact.relation != "spouse":
                    self.facts_by_other[value].append(fact)
        self.first_wording = {
            fact.id: int(rng.random() * len(_wordings(fact))) for fact in all_facts
        }
        self.restated: set[str] = set()
        self.max_restated = int(RESTATED_SHARE * len(self.first_wording))

    def sentence(self, fact: AnyFact, wording: str, head: str | None = None) -> str:
        """The fact in a wording; `head` is an alias for the head's name."""
        surfaces = {role: self.names.get(value, value) for role, value in fact.arguments}
        return wording.format_map(surfaces | {"head": head or self.names[fact.head]})

    def _first_statements(
        self, entity: Entity, facts: Sequence[AnyFact]
    ) -> Iterator[tuple[str, tuple[str, ...]]]:
        """The page's facts in their first wordings; some sentences join two facts."""
        rng = self.rng
        remaining = list(facts)
        rng.shuffle(remaining)
        surplus = len(remaining) - MAX_SENTENCES
        head: str | None = None
        while remaining:
            fact = remaining.pop()
            text = self.sentence(fact, self._first_wording(fact), head)
            if remaining and (surplus > 0 or rng.random() < _JOIN_SHARE):
                other = next((option for option in remaining if self._joinable(option)), None)
                if other is not None and self._joinable(fact):
                    remaining.remove(other)
                    surplus -= 1
                    more = self.sentence(other, self._first_wording(other))
                    yield f"{text[:-1]} and {more[len(entity.name) + 1 :]}", (fact.id, other.id)
                    continue
            yield text, (fact.id,)
            # The first sentence names the entity in full; later ones may use an alias.
            head = None
            if entity.aliases and rng.random() < _ALIAS_SHARE:
                head = entity.aliases[0]

    def _first_wording(self, fact: AnyFact) -> str:
        return _wordings(fact)[self.first_wording[fact.id]]

    def _joinable(self, fact: AnyFact) -> bool:
        """Whether the first wording starts with "{head} <verb>" and can therefore follow "and"."""
        wording = self._first_wording(fact)
        return wording.startswith("{head} ") and not wording.startswith("{head} and")

    def _restatement(
        self, entity: Entity, page: Collection[str]
    ) -> tuple[str, tuple[str, ...]] | None:
        """A fact of another page in another wording; None when no fact is left.

        `page` holds the ids of the facts that this page already states.
        """
        if len(self.restated) >= self.max_restated:
            return None
        options = [
            fact
            for fact in chain(self.facts_by_head[entity.id], self.facts_by_other[entity.id])
            if fact.id not in self.restated and fact.id not in page
        ]
        if not options:
            options = [
                fact
                for link in self.facts_by_head[entity.id]
                if isinstance(link, Fact) and link.tail in self.facts_by_head
                for fact in self.facts_by_head[link.tail]
                if fact.id not in self.restated and fact.id not in page
            ]
        if not options:
            return None
        fact = options[int(self.rng.random() * len(options))]
        self.restated.add(fact.id)
        wordings = _wordings(fact)
        step = 1 + int(self.rng.random() * (len(wordings) - 1))
        wording = wordings[(self.first_wording[fact.id] + step) % len(wordings)]
        return self.sentence(fact, wording), (fact.id,)

    def filler(self, entity: Entity) -> tuple[str, tuple[str, ...]]:
        """A sentence that states no fact."""
        template = self.rng.choice(_FILLERS[entity.type])
        return template.format(head=entity.name, phrase=draw_phrase(self.rng)), ()

    def page(self, entity: Entity, facts: Sequence[AnyFact]) -> list[tuple[str, tuple[str, ...]]]:
        """The sentences of one page, each with the ids of the facts that it states."""
        sentences = list(self._first_statements(entity, facts))
        stated = {fact.id for fact in facts}
        words = sum(text.count(" ") + 1 for text, _ in sentences)
        min_sentences = 3 + (self.rng.random() < 0.3)
        while words < MIN_WORDS or (len(sentences) < min_sentences and words < _FULL):
            extra = None if self.rng.random() < 0.2 else self._restatement(entity, stated)
            text, ids = extra or self.filler(entity)
            stated.update(ids)
            sentences.append((text, ids))
            words += text.count(" ") + 1
        return sentences


def _wordings(fact: AnyFact) -> tuple[str, ...]:
    return ALL_RELATIONS[fact.relation].statements


def write_documents(
    rng: random.Random,
    entities: Mapping[str, Entity],
    facts: Collection[Fact],
    nary: Collection[NaryFact],
    two_pages: Collection[str],
) -> tuple[Document, ...]:
    """All documents in random order, one or two per entity.

    Args:
        rng: source of randomness.
        entities: by id.
        facts: binary facts; a head with more than four of them must be in `two_pages`.
        nary: n-ary facts; an id starts with the id of the entity whose page states the fact.
        two_pages: ids of the entities with two documents.
    """
    writer = _Writer(rng, entities, facts, nary)
    pages: list[tuple[str, list[tuple[str, tuple[str, ...]]]]] = []
    for entity in entities.values():
        entity_facts = writer.facts_by_head[entity.id]
        rng.shuffle(entity_facts)
        has_two = entity.id in two_pages
        cut = (len(entity_facts) + 1) // 2 if has_two else len(entity_facts)
        pages.append((entity.name, writer.page(entity, entity_facts[:cut])))
        if has_two:
            pages.append((entity.name, writer.page(entity, entity_facts[cut:])))
    rng.shuffle(pages)
    return tuple(
        Document(
            f"doc-{number}",
            title,
            tuple(text for text, _ in sentences),
            tuple(ids for _, ids in sentences),
        )
        for number, (title, sentences) in enumerate(pages)
    )
