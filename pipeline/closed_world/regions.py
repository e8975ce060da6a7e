"""Proposes questions of every kind from a part of a closed world.

Purpose: the candidates from which `splits` draws. Input: a `World` and a set of its entities.
Output: iterators of `Question`s that involve only these entities, in random order. Each call makes
a limited number of attempts; the questions may repeat, and there may be none.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence

from pipeline.closed_world.questions import (
    BRIDGE_SAME,
    BRIDGES,
    INFERENCES,
    RANKED,
    SAME,
    Question,
    bridge_comparison_question,
    chain_question,
    comparison_question,
    nary_question,
)
from pipeline.closed_world.schema import AnyFact, Fact
from pipeline.closed_world.world import World

ATTEMPTS = 40


class Region:
    """The facts of a world that involve only a set of entities.

    Args:
        world: the world.
        entities: ids of the entities.
        held_out: whether the entities are held out for unseen test questions.
    """

    def __init__(self, world: World, entities: frozenset[str], *, held_out: bool) -> None:
        self.world = world
        self.held_out = held_out
        self.entities = entities
        self.facts = [fact for fact in world.facts.values() if self._contains(fact)]
        self.famous = [fact for fact in self.facts if world.entities[fact.head].famous]
        famous = {entity for entity in entities if world.entities[entity].famous}
        self.near_famous = sorted(
            famous | {fact.head for fact in self.facts if fact.tail in famous}
        )
        self.nary = [fact for fact in world.nary.values() if self._contains(fact)]
        self.by_relation: dict[str, list[Fact]] = {}
        self.by_tail: dict[tuple[str, str], list[Fact]] = {}
        for fact in self.facts:
            self.by_relation.setdefault(fact.relation, []).append(fact)
            self.by_tail.setdefault((fact.relation, fact.tail), []).append(fact)
        self.groups: dict[str, list[list[Fact]]] = {}
        for (relation, _), group in self.by_tail.items():
            if len(group) > 1:
                self.groups.setdefault(relation, []).append(group)

    def chains(
        self, rng: random.Random, hops: int, famous_share: float = 0.0
    ) -> Iterator[Question]:
        """Chains of `hops` hops, including inferences.

        A share ``famous_share`` of the proposals has at least one hop whose head is a famous
        entity. Such chains are few; many of these proposals are therefore repetitions.
        """
        famous: Iterator[tuple[Fact, ...]] = iter(())
        for chain in self.world.chains(rng, hops, ATTEMPTS // 2, within=self.entities):
            famous_chain = None
            if famous_share and rng.random() < famous_share:
                famous_chain = next(famous, None)
                if famous_chain is None:
                    famous = iter(self._famous_chains(rng, hops))
                    famous_chain = next(famous, None)
            yield chain_question(self.world, rng, famous_chain or chain)

    def _famous_chains(self, rng: random.Random, hops: int) -> list[tuple[Fact, ...]]:
        chains = self.world.chains(
            rng, hops, ATTEMPTS // 2, heads=self.near_famous, within=self.entities
        )
        entities = self.world.entities
        return [chain for chain in chains if any(entities[fact.head].famous for fact in chain)]

    def compositional(self, rng: random.Random, famous_share: float = 0.0) -> Iterator[Question]:
        """Chains of two hops without inferences; ``famous_share`` as in `chains`."""
        questions = self.chains(rng, 2, famous_share)
        return (question for question in questions if question.kind == "compositional")

    def inferences(self, rng: random.Random) -> Iterator[Question]:
        """Chains of two hops that a single word expresses, such as "paternal grandfather"."""
        first, second = rng.choice(list(INFERENCES))
        starts = self.by_relation.get(first, [])
        for start in rng.sample(starts, min(ATTEMPTS, len(starts))):
            end = self.world.fact_of(start.tail, second)
            if end is not None and end.tail in self.entities and end.tail != start.head:
                yield chain_question(self.world, rng, (start, end))

    def singles(self, rng: random.Random, facts: Sequence[Fact]) -> Iterator[Question]:
        """Single-hop questions about some of the facts."""
        for fact in rng.sample(facts, min(ATTEMPTS, len(facts))):
            yield chain_question(self.world, rng, (fact,))

    def nary_singles(self, rng: random.Random) -> Iterator[Question]:
        """Single-hop questions about n-ary facts."""
        for fact in rng.sample(self.nary, min(ATTEMPTS, len(self.nary))):
            yield nary_question(self.world, rng, fact)

    def _pair(self, rng: random.Random, key: str, *, same_tail: bool) -> tuple[Fact, Fact] | None:
        """Two facts of a relation with different heads; they have the same tail if `same_tail`."""
        if same_tail:
            groups = self.groups.get(key, [])
            first, second = rng.sample(rng.choice(groups), 2) if groups else (None, None)
        else:
            facts = self.by_relation.get(key, [])
            first, second = rng.sample(facts, 2) if len(facts) > 1 else (None, None)
        return (first, second) if first and second else None

    def comparisons(self, rng: random.Random) -> Iterator[Question]:
        """Comparisons of two heads: 60 % ranked, the rest answered by yes or no."""
        for _ in range(ATTEMPTS):
            ranked = rng.random() < 0.6
            key = rng.choice(list(RANKED if ranked else SAME))
            pair = self._pair(rng, key, same_tail=not ranked and rng.random() < 0.5)
            question = pair and comparison_question(self.world, rng, *pair)
            if question:
                yield question

    def bridge_comparisons(self, rng: random.Random) -> Iterator[Question]:
        """Comparisons of the persons to whom two heads are related."""
        for _ in range(ATTEMPTS):
            ranked = rng.random() < 0.6
            bridge = rng.choice(BRIDGES)
            key = "birth_date" if ranked else rng.choice(list(BRIDGE_SAME))
            pair = self._pair(rng, bridge, same_tail=False)
            # Half of the answers should be yes, which random pairs almost never give.
            if pair and not ranked and rng.random() < 0.5:
                pair = self._pair_with_same_end(rng, pair[0], key)
            question = pair and bridge_comparison_question(self.world, rng, pair, key)
            if question and all(self._contains(step.fact) for step in question.steps):
                yield question

    def _contains(self, fact: AnyFact) -> bool:
        return self.entities.issuperset(self.world.entities_of(fact))

    def _pair_with_same_end(
        self, rng: random.Random, bridge: Fact, key: str
    ) -> tuple[Fact, Fact] | None:
        """The bridge and another bridge whose person has the same tail of the relation `key`."""
        end = self.world.fact_of(bridge.tail, key)
        if end is None:
            return None
        heads = [fact.head for fact in self.by_tail.get((key, end.tail), [])]
        others = [
            fact
            for head in heads
            for fact in self.by_tail.get((bridge.relation, head), [])
            if head != bridge.tail and fact.head != bridge.head
        ]
        return (bridge, rng.choice(others)) if others else None
