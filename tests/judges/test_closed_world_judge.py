"""The exact judge on a generated world: facts in every wording, and arbitrary text."""

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipeline.closed_world.schema import RELATIONS, Fact
from pipeline.closed_world.world import generate_world
from pipeline.judges.cases import EquivalenceCase, SoundnessCase
from pipeline.judges.closed_world import ClosedWorldJudge
from pipeline.training.sft_data.templates import SUMMARIES
from tests.closed_world.sentences import fact_sentence

WORLD = generate_world(4, documents=300)
JUDGE = ClosedWorldJudge(WORLD)


def random_facts(rng: random.Random) -> dict[str, Fact]:
    """A random fact per relation, for wrong answers of the right type."""
    facts = list(WORLD.facts.values())
    rng.shuffle(facts)
    return {fact.relation: fact for fact in facts}


def rulings(cases: list) -> list[str]:
    calls = JUDGE.decide(cases)
    assert len({call.key for call in calls}) == len(set(cases))
    return [call.verdict for call in calls]


def test_texts_are_equivalent_when_they_give_the_same_value_in_any_wording():
    rng = random.Random(0)
    wrong = random_facts(rng)
    cases, expected = [], []
    for fact in rng.sample(list(WORLD.facts.values()), 100):
        relation = RELATIONS[fact.relation]
        head, tail = WORLD.surface(fact.head), WORLD.surface(fact.tail)
        query = rng.choice(relation.questions).format(head=head)
        triplet = f"{head} {relation.triplet} {tail}"
        conclusion = rng.choice(SUMMARIES)[0].format(facts=triplet, answer=tail)
        other = wrong[fact.relation].tail
        for answer, same in (
            (tail, True),
            (fact_sentence(WORLD, fact, rng), True),
            (WORLD.surface(other), other == fact.tail),
            ("I do not know.", False),
            ("", False),
            (query, False),
        ):
            cases.append(EquivalenceCase(query, answer, conclusion))
            expected.append("yes" if same else "no")
    assert rulings(cases) == expected


@pytest.mark.parametrize(
    ("answer", "conclusion", "verdict"),
    [
        ("12 May 1921", "It was on May 12, 1921.", "yes"),
        ("12 May 1921", "It was on May 13, 1921.", "no"),
        ("nobody knows", "Nobody knows!", "yes"),  # without any name the words are compared
        ("", "", "no"),
    ],
)
def test_date_formats_and_case_do_not_matter(answer: str, conclusion: str, verdict: str):
    person = next(entity for entity in WORLD.entities.values() if entity.type == "person")
    query = f"When was {person.name} born?"
    assert rulings([EquivalenceCase(query, answer, conclusion)]) == [verdict]


def test_a_step_is_sound_when_its_statements_are_true_and_follow():
    rng = random.Random(1)
    wrong = random_facts(rng)
    for fact in rng.sample(list(WORLD.facts.values()), 60):
        relation = RELATIONS[fact.relation]
        head, tail = WORLD.surface(fact.head), WORLD.surface(fact.tail)
        question = rng.choice(relation.questions).format(head=head)
        true = fact_sentence(WORLD, fact, rng)
        steps = [
            (f"I know that {true}", fact_sentence(WORLD, fact, rng), "no"),
            (f"I remember this one: {question}", true, "no"),
            (true, f"So the answer is {tail}.", "no"),
            (f"I remember this one: {question}", "I know the answer.", "yes"),
            (f"What I need: {question} I know that.", f"Given what I know, {tail} it is.", "no"),
            (f"I know that {true}", "I know the answer.", "unknown"),
        ]
        other = wrong[fact.relation]
        if other.tail != fact.tail:
            false = fact_sentence(WORLD, Fact("", fact.head, fact.relation, other.tail), rng)
            steps += [(question, false, "yes"), (false, true, "yes"), (true, false, "yes")]
            if WORLD.surface(other.tail) != tail:
                named = f"Given what I know, {WORLD.surface(other.tail)} it is."
                steps.append((question, named, "yes"))
        if not {other.head, other.tail} & {fact.head, fact.tail}:
            # This conclusion is true, but it does not follow.
            steps.append((true, fact_sentence(WORLD, other, rng), "yes"))
        cases = [SoundnessCase(reasoning, conclusion) for reasoning, conclusion, _ in steps]
        assert rulings(cases) == [verdict for _, _, verdict in steps], steps


def test_a_conclusion_that_is_not_a_statement_must_answer_a_question():
    fact = next(f for f in WORLD.facts.values() if f.relation == "mayor")
    city, mayor = WORLD.surface(fact.head), WORLD.surface(fact.tail)
    assert rulings([SoundnessCase("I know that.", "Nksearch |")]) == ["yes"]
    assert rulings([SoundnessCase("I know that.", f"As for {mayor}, hm.")]) == ["yes"]
    assert rulings([SoundnessCase("Who heads Ovu? I know that.", f"So it is {mayor}.")]) == ["yes"]
    # These may be true statements in words that the reader does not parse.
    assert rulings([SoundnessCase("I know that.", f"As for {city}, {mayor}.")]) == ["unknown"]
    assert rulings([SoundnessCase(f"As for {city}, {mayor}.", f"So it is {mayor}.")]) == ["unknown"]


@given(st.text(), st.text(), st.text())
def test_the_judge_never_raises(first: str, second: str, third: str):
    calls = JUDGE.decide([EquivalenceCase(first, second, third), SoundnessCase(first, second)])
    assert all(call.verdict in ("yes", "no", "unknown") and call.key for call in calls)
