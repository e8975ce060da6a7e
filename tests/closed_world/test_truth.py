"""The truth of steps and answers: gold trajectories are right, and each fault shows where it is."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest

from pipeline.closed_world.schema import RELATIONS, Fact
from pipeline.closed_world.truth import StepTruth, Truth
from pipeline.closed_world.world import generate_world
from pipeline.closed_world.write import triplets_of
from pipeline.core.errors import InputError
from pipeline.core.records import ContextItem, Step, Trajectory
from tests.smallest import small_trajectory

WORLD = generate_world(4, documents=600)
CHAIN, OTHER = WORLD.chains(random.Random(0), 2, 2)
TRIPLET = " ".join(*triplets_of(WORLD, CHAIN[0].id))
TRUTH = Truth(WORLD, {"q": [fact.id for fact in CHAIN]})


def query(fact: Fact) -> str:
    return RELATIONS[fact.relation].questions[0].format(head=WORLD.surface(fact.head))


def passage(fact: Fact) -> ContextItem:
    document = WORLD.documents_of(fact.id)[0]
    return ContextItem("chunk", "", document.title, document.text, 0.0)


def step(fact: Fact, **fields: object) -> Step:
    conclusion = f"So the answer is {WORLD.surface(fact.tail)}."
    return replace(
        Step(subquery=query(fact), context=[passage(fact)], summary=conclusion), **fields
    )


def solved(*steps: Step) -> Trajectory:
    return small_trajectory(
        question_id="q",
        steps=list(steps),
        answers=[WORLD.surface(CHAIN[-1].tail)],
        answer=WORLD.surface(CHAIN[-1].tail),
    )


def in_prograph(steps: list[Step]) -> list[Step]:
    """The steps as turns that conclude from the turn before."""
    turns = [Step(query=step.subquery, context=step.context) for step in steps] + [Step()]
    return [
        replace(turn, think=before)
        for turn, before in zip(turns, ["", *(step.summary for step in steps)], strict=True)
    ]


GOLD = [step(fact) for fact in CHAIN]
IN_HIPRAG = [Step(search=s.subquery, context=s.context, conclusion=s.summary) for s in GOLD]


@pytest.mark.parametrize("steps", [GOLD, IN_HIPRAG, in_prograph(GOLD)])
def test_a_gold_trajectory_is_right_and_supported_in_every_grammar(steps: list[Step]) -> None:
    found = TRUTH.of_trajectory(solved(*steps))
    assert found.steps[:2] == (StepTruth(True, True, True),) * 2
    assert (found.right, found.answer, found.supported) == (True, True, True)


def test_a_triplet_states_its_fact_too() -> None:
    first = step(CHAIN[0], context=[ContextItem("triplet", "", "", TRIPLET, 0.0)])
    assert TRUTH.of_trajectory(solved(first, GOLD[1])).supported


@pytest.mark.parametrize(
    ("first", "expected"),
    [
        (step(CHAIN[0], context=[passage(OTHER[0])]), StepTruth(True, False, True)),
        (step(CHAIN[0], summary="So the answer is nobody."), StepTruth(True, True, False)),
        (step(OTHER[0]), StepTruth(False, True, True)),
        (
            Step(subquery="What about it?", context=[passage(CHAIN[0])]),
            StepTruth(False, None, None),
        ),
    ],
)
def test_each_fault_of_a_step_is_told(first: Step, expected: StepTruth) -> None:
    found = TRUTH.of_trajectory(solved(first, GOLD[1]))
    assert (found.steps[0], found.right) == (expected, False)
    assert found.supported == (passage(CHAIN[0]) in first.context)


def test_a_lucky_answer_has_no_support_and_a_wrong_one_is_wrong() -> None:
    lucky = TRUTH.of_trajectory(solved())
    assert (lucky.right, lucky.answer, lucky.supported) == (None, True, False)
    wrong = TRUTH.of_trajectory(replace(solved(*GOLD), answer="nobody"))
    assert (wrong.right, wrong.answer, wrong.supported) == (True, False, False)


@pytest.mark.parametrize(("fact", "right"), [(CHAIN[0], True), (OTHER[0], False)])
def test_a_right_conclusion_without_a_search_supports(fact: Fact, right: bool) -> None:
    conclusion = f"So the answer is {WORLD.surface(fact.tail)}."
    from_memory = Step(reasoning=f"I know this. {query(CHAIN[0])}", conclusion=conclusion)
    found = TRUTH.of_trajectory(solved(from_memory, GOLD[1]))
    assert found.steps[0] == StepTruth(None, None, right)
    assert found.supported is right


def test_a_statement_from_memory_supports_without_a_question() -> None:
    from_memory = Step(reasoning="I know that.", conclusion=f"Because {TRIPLET}, we know.")
    assert TRUTH.of_trajectory(solved(from_memory, GOLD[1])).supported


def test_a_question_of_another_world_is_refused() -> None:
    with pytest.raises(InputError, match="'x' is no question of this closed world"):
        TRUTH.of_trajectory(replace(solved(), question_id="x"))
