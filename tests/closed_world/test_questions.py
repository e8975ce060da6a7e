"""Question texts on a small hand-written world, and their answers by the oracle."""

from __future__ import annotations

import random

import pytest

from pipeline.closed_world.oracle import Oracle
from pipeline.closed_world.questions import (
    accepted_answers,
    bridge_comparison_question,
    chain_question,
    comparison_question,
)
from pipeline.closed_world.schema import Entity, Fact, NaryFact
from pipeline.closed_world.world import World

ENTITIES = [
    ("lantern", "Silver Lantern", "film", ()),
    ("harbor", "Quiet Harbor", "film", ()),
    ("mora", "Mora Tenlin", "person", ("Tenlin", "M. Tenlin")),
    ("dake", "Dake Tenlin", "person", ("Tenlin", "D. Tenlin")),
    ("olim", "Olim Barro", "person", ("Barro", "O. Barro")),
    ("kars", "Kars", "city", ()),
    ("belland", "Belland", "country", ("Republic of Belland",)),
    ("avon", "Avon (river)", "river", ("Avon",)),
    ("avon-city", "Avon (city)", "city", ("Avon",)),
]
FACTS = [
    ("lantern", "director", "mora"),
    ("lantern", "released", "1950"),
    ("harbor", "director", "dake"),
    ("harbor", "released", "1960"),
    ("mora", "birthplace", "kars"),
    ("mora", "birth_date", "12 May 1921"),
    ("mora", "father", "olim"),
    ("dake", "birthplace", "kars"),
    ("dake", "birth_date", "3 March 1921"),
    ("dake", "spouse", "mora"),
    ("mora", "spouse", "dake"),
    ("kars", "country", "belland"),
    ("kars", "river", "avon"),
    ("avon", "length", "412 miles"),
    ("avon-city", "country", "belland"),
    ("belland", "leader", "olim"),
]


@pytest.fixture
def world() -> World:
    entities = {
        key: Entity(key, name, kind, aliases, False) for key, name, kind, aliases in ENTITIES
    }
    facts = {f"{head}/{key}": Fact(f"{head}/{key}", head, key, tail) for head, key, tail in FACTS}
    arguments = (("actor", "olim"), ("character", "Zorn"), ("film", "lantern"))
    cast = NaryFact("lantern/cast", "cast", arguments)
    return World(0, entities, facts, {cast.id: cast}, ())


def facts_of(world: World, *ids: str) -> list[Fact]:
    return [world.facts[key] for key in ids]


def test_a_chain_becomes_one_nested_question_and_steps_with_placeholders(world: World) -> None:
    chain = facts_of(world, "lantern/director", "mora/birthplace", "kars/country")
    texts = set()
    for seed in range(60):
        question = chain_question(world, random.Random(seed), chain)
        texts.add(question.text)
        assert "Silver Lantern" in question.text
        assert not any(hidden in question.text for hidden in ("Mora", "Kars", "Belland", "#"))
        assert [step.answer for step in question.steps] == ["Mora Tenlin", "Kars", "Belland"]
        first, second, third = (step.question for step in question.steps)
        assert "Silver Lantern" in first
        assert "#1" in second
        assert "#2" in third
        assert question.answer == "Belland"
        assert question.aliases == ("Republic of Belland",)
    assert "In which country is the city where the director of Silver Lantern was born?" in texts


@pytest.mark.parametrize("swapped", [False, True])
def test_a_ranked_comparison_has_the_right_answer_in_either_order(
    world: World, swapped: bool
) -> None:
    """Silver Lantern was released in 1950, Quiet Harbor in 1960."""
    first, second = facts_of(world, "lantern/released", "harbor/released")
    if swapped:
        first, second = second, first
    answers = {}
    for seed in range(40):
        question = comparison_question(world, random.Random(seed), first, second)
        assert question is not None
        answers[question.text.split(",")[0]] = question.answer
    assert answers == {
        "Which film was released first": "Silver Lantern",
        "Which film came out earlier": "Silver Lantern",
        "Which film was released more recently": "Quiet Harbor",
    }


def test_dates_of_the_same_year_are_compared_by_month_and_day(world: World) -> None:
    """Dake Tenlin: 3 March 1921; Mora Tenlin: 12 May 1921."""
    bridges = world.facts["lantern/director"], world.facts["harbor/director"]
    answers = {}
    for seed in range(60):
        question = bridge_comparison_question(world, random.Random(seed), bridges, "birth_date")
        assert question is not None
        answers[question.text.split(",")[0]] = question.answer
        assert [step.answer for step in question.steps[2:]] == ["12 May 1921", "3 March 1921"]
    assert answers == {
        "Which film has the director who was born first": "Quiet Harbor",
        "Which film has the director who is older": "Quiet Harbor",
        "Which film has the director who was born later": "Silver Lantern",
        "Which film has the director who is younger": "Silver Lantern",
    }


def test_only_unambiguous_spellings_are_accepted(world: World) -> None:
    """Tenlin is ambiguous; Avon is not, because the question determines the type."""
    assert accepted_answers(world, "mora") == ("Mora Tenlin", "M. Tenlin")
    assert accepted_answers(world, "olim") == ("Olim Barro", "Barro", "O. Barro")
    assert accepted_answers(world, "avon") == ("Avon (river)", "Avon")
    assert accepted_answers(world, "12 May 1921") == ("12 May 1921", "May 12, 1921")
    assert accepted_answers(world, "412 miles") == ("412 miles", "412")
    assert accepted_answers(world, "1950") == ("1950",)


@pytest.mark.parametrize(
    ("statement", "verdict"),
    [
        ("Barro is the head of state of Belland", True),
        ("Kars lies on the Avon.", True),
        ("Avon is located in Belland.", True),
        ("M. Tenlin was born on May 12, 1921.", True),
        ("Tenlin was born in Kars.", True),  # as both Tenlins were
        ("Tenlin was born on 12 May 1921.", None),  # as only one was
        ("Silver Lantern was directed by Dake Tenlin.", False),
        ("Silver Lantern was directed by Nobody Known.", False),
        ("Quiet Harbor is based on Dark Water.", False),
        ("Silver Lantern was directed by a team of friends.", None),
        ("Golden Ship was directed by Mora Tenlin.", None),
        ("Silver Lantern was released in spring.", None),
        ("Mora Tenlin was born in Kars and married Dake Tenlin.", None),
        ("", None),
    ],
)
def test_the_oracle_accepts_aliases_and_tells_false_from_ambiguous_and_unreadable_statements(
    world: World, statement: str, verdict: bool | None
) -> None:
    assert Oracle(world).verify(statement) is verdict


def test_the_shortest_path_uses_shortcuts_and_both_directions_of_a_fact(world: World) -> None:
    """mora -> kars -> avon -> length has no shortcut. lantern -> mora -> olim has one of length 1,
    because Olim Barro plays in Silver Lantern."""
    oracle = Oracle(world)
    straight = facts_of(world, "mora/birthplace", "kars/river", "avon/length")
    shortcut = facts_of(world, "lantern/director", "mora/father")
    assert oracle.shortest_path(straight) == 3
    assert oracle.shortest_path(shortcut) == 1
