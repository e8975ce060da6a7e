"""The oracle on a generated world: exact verdicts on every fact, and no exception on any text."""

from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipeline.closed_world.oracle import Oracle
from pipeline.closed_world.schema import NARY_RELATIONS, RELATIONS, Fact
from pipeline.closed_world.world import World, generate_world
from tests.closed_world.sentences import fact_sentence

ORACLE = Oracle(generate_world(4, documents=600))


@pytest.fixture(scope="module")
def world() -> World:
    return ORACLE.world


def test_every_fact_is_verified_in_every_wording(world: World) -> None:
    rng = random.Random(0)
    for fact in world.facts.values():
        relation = RELATIONS[fact.relation]
        for wording in range(len(relation.statements)):
            assert ORACLE.verify(fact_sentence(world, fact, rng, wording)) is True
        triplet = f"{world.surface(fact.head)} {relation.triplet} {world.surface(fact.tail)}"
        assert ORACLE.verify(triplet) is True


def test_every_fact_with_another_tail_or_head_is_false(world: World) -> None:
    rng = random.Random(1)
    by_relation: dict[str, list[Fact]] = {}
    for fact in world.facts.values():
        by_relation.setdefault(fact.relation, []).append(fact)
    for fact in world.facts.values():
        other = rng.choice(by_relation[fact.relation])
        if other.tail != fact.tail:
            wrong_tail = Fact("", fact.head, fact.relation, other.tail)
            wrong_head = Fact("", other.head, fact.relation, fact.tail)
            assert ORACLE.verify(fact_sentence(world, wrong_tail, rng)) is False
            assert ORACLE.verify(fact_sentence(world, wrong_head, rng)) is False


def test_every_nary_fact_is_true_and_false_with_another_year(world: World) -> None:
    for fact in world.nary.values():
        surfaces = {role: world.surface(value) for role, value in fact.arguments}
        for wording in NARY_RELATIONS[fact.relation].statements:
            assert ORACLE.verify(wording.format_map(surfaces)) is True
            if "year" in surfaces:
                assert ORACLE.verify(wording.format_map({**surfaces, "year": "1111"})) is False


def test_every_one_hop_question_is_answered_in_every_wording(world: World) -> None:
    for fact in world.facts.values():
        relation = RELATIONS[fact.relation]
        head, tail = world.surface(fact.head), world.surface(fact.tail)
        for wording in (*relation.questions, *(f"Name {noun}." for noun in relation.nouns)):
            assert ORACLE.answer(wording.format(head=head)) == tail
    for nary_fact in world.nary.values():
        nary = NARY_RELATIONS[nary_fact.relation]
        surfaces = {role: world.surface(value) for role, value in nary_fact.arguments}
        for wording in nary.questions:
            assert ORACLE.answer(wording.format_map(surfaces)) == surfaces[nary.answer_role]


@given(
    st.text()
    | st.lists(st.sampled_from(["the", "city", "where", "was", "born", "of", "Name"])).map(" ".join)
)
def test_the_oracle_never_raises_on_any_text(text: str) -> None:
    assert ORACLE.verify(text) in (True, False, None)
    answer = ORACLE.answer(text)
    assert answer is None or answer
