"""A simulated retriever over a generated world, for the training trajectories.

Input: a world and a fact. Output: `Item`s. Some state the fact; the others are hard distractors:
other pages and triplets of the same entity, the same relation of other entities, entities with a
similar name, other facts about the answer, and random pages.
"""

from __future__ import annotations

import random
from collections.abc import Iterable
from dataclasses import dataclass

from pipeline.closed_world.schema import RELATIONS, Document, Fact, NaryFact
from pipeline.closed_world.world import World


@dataclass(frozen=True, slots=True)
class Item:
    """A retrieved document, or a retrieved triplet, whose title is empty."""

    title: str
    text: str


def triplet_text(world: World, fact: Fact) -> str:
    """The fact as "head relation tail"."""
    head, tail = world.surface(fact.head), world.surface(fact.tail)
    return f"{head} {RELATIONS[fact.relation].triplet} {tail}"


class SimulatedRetriever:
    """Draws evidence and distractors; holds the indexes over one world."""

    def __init__(self, world: World) -> None:
        self.world = world
        self._documents_by_title: dict[str, list[Document]] = {}
        for document in world.documents:
            self._documents_by_title.setdefault(document.title, []).append(document)
        self._facts_by_relation: dict[str, list[Fact]] = {}
        self._facts_by_tail: dict[str, list[Fact]] = {}
        self._entities_by_word: dict[str, list[str]] = {}
        for fact in world.facts.values():
            self._facts_by_relation.setdefault(fact.relation, []).append(fact)
            self._facts_by_tail.setdefault(fact.tail, []).append(fact)
        self._facts_by_text: dict[str, list[Fact]] = {}
        for document in world.documents:
            ids = [fact_id for sentence_ids in document.facts for fact_id in sentence_ids]
            self._facts_by_text[document.text] = [
                world.facts[fact_id] for fact_id in ids if fact_id in world.facts
            ]
        for fact in world.facts.values():
            self._facts_by_text[triplet_text(world, fact)] = [fact]
        for entity in world.entities.values():
            for word in entity.name.split():
                if len(word) > 3:
                    self._entities_by_word.setdefault(word, []).append(entity.id)

    def sentence(self, fact: Fact | NaryFact, items: Iterable[Item]) -> str:
        """The sentence that states the fact in one of the retrieved documents; "" without one."""
        texts = {item.text for item in items}
        for document in self.world.documents_of(fact.id):
            if document.text in texts:
                for sentence, ids in zip(document.sentences, document.facts, strict=True):
                    if fact.id in ids:
                        return sentence
        return ""

    def evidence(self, rng: random.Random, fact: Fact | NaryFact) -> list[Item]:
        """One or two items that state the fact: a document, a triplet, or both."""
        documents = self.world.documents_of(fact.id)
        draw = rng.random()
        items: list[Item] = []
        if documents and (draw < 0.75 or isinstance(fact, NaryFact)):
            document = rng.choice(documents)
            items.append(Item(document.title, document.text))
        if isinstance(fact, Fact) and (draw > 0.48 or not items):
            items.append(Item("", triplet_text(self.world, fact)))
        return items

    def _heads(self, fact: Fact | NaryFact) -> list[str]:
        if isinstance(fact, Fact):
            return [fact.head]
        return [value for _, value in fact.arguments if value in self.world.entities]

    def _document_about(self, rng: random.Random, entity: str) -> Item | None:
        documents = self._documents_by_title.get(self.world.surface(entity))
        if not documents:
            return None
        document = rng.choice(documents)
        return Item(document.title, document.text)

    def _triplet_about(self, rng: random.Random, entity: str) -> Item | None:
        facts = self.world.facts_about(entity)
        return Item("", triplet_text(self.world, rng.choice(facts))) if facts else None

    def _distractor(self, rng: random.Random, fact: Fact | NaryFact) -> Item | None:
        world = self.world
        draw = rng.random()
        wants_document = rng.random() < 0.55
        heads = self._heads(fact)
        item_about = self._document_about if wants_document else self._triplet_about
        if draw < 0.3:
            return item_about(rng, rng.choice(heads))
        if draw < 0.5:
            if isinstance(fact, NaryFact):
                document = rng.choice(world.documents)
                return Item(document.title, document.text)
            other = rng.choice(self._facts_by_relation[fact.relation])
            if wants_document:
                documents = world.documents_of(other.id)
                if not documents:
                    return None
                document = rng.choice(documents)
                return Item(document.title, document.text)
            return Item("", triplet_text(world, other))
        if draw < 0.65:
            word = rng.choice(world.surface(rng.choice(heads)).split())
            return item_about(rng, rng.choice(self._entities_by_word.get(word, heads)))
        if draw < 0.85 and isinstance(fact, Fact):
            if fact.tail in world.entities and rng.random() < 0.6:
                return item_about(rng, fact.tail)
            other = rng.choice(self._facts_by_tail[fact.tail])
            if wants_document:
                return item_about(rng, other.head)
            return Item("", triplet_text(world, other))
        document = rng.choice(world.documents)
        return Item(document.title, document.text)

    def _texts_stating(self, fact: Fact | NaryFact) -> set[str]:
        """Texts of the documents and triplets that state the fact."""
        texts = {document.text for document in self.world.documents_of(fact.id)}
        if isinstance(fact, Fact):
            texts.add(triplet_text(self.world, fact))
            # A marriage is also stated by the spouse's fact.
            other = self.world.fact_of(fact.tail, fact.relation)
            if fact.relation == "spouse" and other is not None:
                texts.add(triplet_text(self.world, other))
                texts.update(document.text for document in self.world.documents_of(other.id))
        return texts

    def retrieve(
        self, rng: random.Random, fact: Fact | NaryFact, count: int, *, with_evidence: bool
    ) -> list[Item]:
        """About `count` distinct items in random order.

        With `with_evidence`, one or two of them state the fact; otherwise none does.
        """
        stating = self._texts_stating(fact)
        items = self.evidence(rng, fact) if with_evidence else []
        seen = {item.text for item in items}
        for _ in range(60):
            if len(items) >= count:
                break
            item = self._distractor(rng, fact)
            if item is not None and item.text not in seen and item.text not in stating:
                items.append(item)
                seen.add(item.text)
        rng.shuffle(items)
        return items

    def stated_facts(self, item: Item) -> list[Fact]:
        """The binary facts that an item states."""
        return self._facts_by_text.get(item.text, [])
