"""The closed world: consistent, fully documented, with the same famous core for every seed."""

from __future__ import annotations

import hashlib
import random
from collections import Counter

import pytest

from pipeline.closed_world.fact_generation import NearMisses, famous_core
from pipeline.closed_world.world import World, generate_world
from pipeline.core.errors import InputError


@pytest.fixture(scope="module")
def world() -> World:
    return generate_world(11)


@pytest.fixture(scope="module")
def near() -> World:
    """The same world with near misses of both kinds."""
    return generate_world(11, near_misses=NearMisses(common_share=0.85, family_share=0.8))


def test_the_famous_core_matches_the_training_data_of_the_tiny_reader() -> None:
    """After a change of the core, the committed weights of the tiny reader no longer know it."""
    core = famous_core()
    digest = hashlib.sha256(repr(core).encode()).hexdigest()
    assert (len(core.entities), len(core.facts)) == (60, 150)
    assert digest == "d4b0181275f420b0499e87de6129ac01bf7c75fcb32472ba8186357e0c2ce9da"


def test_every_world_contains_and_documents_the_famous_core(world: World) -> None:
    core, other = famous_core(), generate_world(12, documents=300)
    for fact in (*core.facts, *core.nary):
        assert world.documents_of(fact.id)
        assert other.documents_of(fact.id)
    assert {e.id for e in world.entities.values() if e.famous} == {e.id for e in core.entities}


def test_too_few_documents_are_rejected_with_the_remedy() -> None:
    with pytest.raises(InputError, match=r"documents is 50; .* at least 200; raise it"):
        generate_world(0, documents=50)


def test_every_fact_is_stated_and_a_fifth_twice_in_different_words(world: World) -> None:
    statements = [
        (key, sentence)
        for document in world.documents
        for sentence, keys in zip(document.sentences, document.facts, strict=True)
        for key in keys
    ]
    counts = Counter(key for key, _ in statements)
    assert set(counts) == {*world.facts, *world.nary}
    assert set(counts.values()) == {1, 2}
    restated = [key for key, number in counts.items() if number == 2]
    assert 0.15 < len(restated) / len(counts) < 0.25
    by_key: dict[str, set[str]] = {}
    for key, sentence in statements:
        by_key.setdefault(key, set()).add(sentence)
    assert all(len(by_key[key]) == 2 for key in restated)


def test_a_sentence_contains_the_tail_of_every_fact_that_it_states(world: World) -> None:
    for document in world.documents:
        for sentence, keys in zip(document.sentences, document.facts, strict=True):
            for key in keys:
                values = [v for role, v in world.fact(key).arguments if role != "head"]
                assert all(world.surface(value) in sentence for value in values)


@pytest.mark.parametrize("hops", [1, 2, 3, 4])
def test_chains_link_tail_to_head_without_repeated_entities(world: World, hops: int) -> None:
    chains = world.chains(random.Random(0), hops, 200)
    assert len({tuple(fact.id for fact in chain) for chain in chains}) == 200
    for chain in chains:
        assert [fact.tail for fact in chain[:-1]] == [fact.head for fact in chain[1:]]
        entities = [chain[0].head, *(fact.tail for fact in chain)]
        assert len(set(entities)) == hops + 1


def test_near_misses_change_neither_other_worlds_nor_the_famous_core(
    world: World, near: World
) -> None:
    assert generate_world(11, near_misses=NearMisses()) == world
    assert [e for e in near.entities.values() if e.famous] == [
        e for e in world.entities.values() if e.famous
    ]


def test_common_values_answer_most_facts_of_places_and_years(world: World, near: World) -> None:
    def three_commonest(of: World, relation: str) -> float:
        tails = Counter(fact.tail for fact in of.facts.values() if fact.relation == relation)
        return sum(count for _, count in tails.most_common(3)) / sum(tails.values())

    for relation in ("country", "birthplace", "alma_mater", "released", "occupation"):
        assert three_commonest(near, relation) > 0.7
        assert three_commonest(near, relation) > 2 * three_commonest(world, relation)
    # A chain goes on from persons, so that common ones would make many chains end alike.
    assert three_commonest(near, "director") < 0.1


def test_common_family_names_make_wrong_persons_partly_right(world: World, near: World) -> None:
    def persons(of: World) -> list[str]:
        return [e.name for e in of.entities.values() if e.type == "person" and not e.famous]

    families = Counter(name.split()[1] for name in persons(near))
    assert 0.75 < sum(count for _, count in families.most_common(12)) / len(persons(near)) < 0.85
    assert len({name.split()[1] for name in persons(world)}) > 0.9 * len(persons(world))
    assert len(set(persons(near))) == len(persons(near))
