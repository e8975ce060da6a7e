"""Splits share no question, and unseen test questions share no entity with other splits."""

from __future__ import annotations

import pytest

from pipeline.closed_world.oracle import Oracle
from pipeline.closed_world.questions import Question, involved_entities
from pipeline.closed_world.splits import DrawnQuestions, draw_questions
from pipeline.closed_world.world import World, generate_world
from pipeline.core.errors import InputError

SIZES = {
    "musique_train": 300,
    "musique_sampling": 90,
    "musique_dev": 30,
    "musique_test": 60,
    "hotpotqa_sampling": 60,
    "hotpotqa_test": 30,
    "wiki2_test": 50,
    "nq_sampling": 60,
    "nq_dev": 20,
    "nq_test": 60,
}


@pytest.fixture(scope="module")
def world() -> World:
    return generate_world(9, documents=1000)


@pytest.fixture(scope="module")
def drawn(world: World) -> dict[tuple[str, str], DrawnQuestions]:
    return draw_questions(world, SIZES)


def all_questions(drawn: dict[tuple[str, str], DrawnQuestions]) -> list[Question]:
    return [question for part in drawn.values() for question in part.questions]


def test_no_question_is_drawn_twice_in_any_wording(
    drawn: dict[tuple[str, str], DrawnQuestions],
) -> None:
    questions = all_questions(drawn)
    assert len({question.text for question in questions}) == len(questions)
    keys = {
        (question.kind, frozenset(question.facts))
        if question.kind.endswith("comparison")
        else question.facts
        for question in questions
    }
    assert len(keys) == len(questions)


def test_unseen_test_questions_share_no_entity_with_other_splits(
    world: World, drawn: dict[tuple[str, str], DrawnQuestions]
) -> None:
    entities_of_other_splits = {
        entity
        for (_, split), part in drawn.items()
        if split != "test"
        for question in part.questions
        for entity in involved_entities(world, question)
    }
    for (dataset, split), part in drawn.items():
        expected = round(SIZES[f"{dataset}_{split}"] / 3) if split == "test" else 0
        assert len(part.unseen) == expected
        for place in part.unseen:
            entities = involved_entities(world, part.questions[place])
            assert not entities & entities_of_other_splits


def test_training_steps_are_not_single_hop_questions_of_any_split(
    drawn: dict[tuple[str, str], DrawnQuestions],
) -> None:
    single = {
        fact
        for (dataset, _), part in drawn.items()
        if dataset == "nq"
        for question in part.questions
        for fact in question.facts
    }
    steps = {fact for question in drawn["musique", "train"].questions for fact in question.facts}
    assert not single & steps


def test_the_oracle_answers_every_chain_correctly(
    world: World, drawn: dict[tuple[str, str], DrawnQuestions]
) -> None:
    oracle = Oracle(world)
    questions = [q for q in all_questions(drawn) if q.kind in ("single", "compositional")]
    assert len(questions) > 500
    for question in questions:
        assert oracle.answer(question.text) == question.answer


def test_sizes_that_exceed_the_world_are_rejected_with_the_remedy(world: World) -> None:
    with pytest.raises(InputError, match=r"only .* of .* nq test .* raise documents or lower"):
        draw_questions(world, {"nq_test": 100_000})
