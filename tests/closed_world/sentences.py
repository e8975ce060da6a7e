"""Sentences that state a fact of a generated world, for tests of its judgments."""

import random

from pipeline.closed_world.schema import RELATIONS, Fact
from pipeline.closed_world.world import World


def fact_sentence(world: World, fact: Fact, rng: random.Random, wording: int | None = None) -> str:
    """A fact in the wording with this number, else in a random one."""
    statements = RELATIONS[fact.relation].statements
    number = int(rng.random() * len(statements)) if wording is None else wording
    return statements[number].format(head=world.surface(fact.head), tail=world.surface(fact.tail))
