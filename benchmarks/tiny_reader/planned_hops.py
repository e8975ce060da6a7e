"""The retrievals of a training trajectory, planned before a format renders them.

Input: a simulated retriever and the steps of a question. Output: `PlannedHop`s, each with its
query, its retrieved items and its conclusion. A retrieval may miss its evidence. The next hop then
repeats the question in other words, and the trajectory gives up after three attempts.
"""

from __future__ import annotations

import random
from dataclasses import dataclass

from benchmarks.tiny_reader.simulated_retriever import Item, SimulatedRetriever, triplet_text
from pipeline.closed_world.documents import fact_sentence
from pipeline.closed_world.questions import RANKED, Question, Step
from pipeline.closed_world.schema import NARY_RELATIONS, RELATIONS, Fact, NaryFact

MISS_RATE = 0.15  # probability that a retrieval lacks the evidence
MAX_ATTEMPTS = 3


@dataclass
class PlannedHop:
    """One retrieval of a trajectory.

    Attributes:
        question: the query, with earlier answers filled in.
        names: surfaces of the entities that the query is about.
        noun: noun phrase for the answer, such as "the director of Silver Lantern".
        fact: the fact that answers the question.
        answer: the answer to the question.
        items: retrieved items; None when the fact is stated from memory without a retrieval.
        answered: whether this hop yields the answer.
        retry: whether the previous hop asked for the same fact.
        statement: the fact in words.
    """

    question: str
    names: list[str]
    noun: str
    fact: Fact | NaryFact
    answer: str
    items: list[Item] | None
    answered: bool
    retry: bool = False
    statement: str = ""


def fill_answers(text: str, answers: list[str]) -> str:
    """The question with #1, #2, … replaced by the answers of these steps."""
    for number, answer in enumerate(answers, start=1):
        text = text.replace(f"#{number}", answer)
    return text


def _names(retriever: SimulatedRetriever, fact: Fact | NaryFact) -> list[str]:
    world = retriever.world
    if isinstance(fact, Fact):
        return [world.surface(fact.head)]
    role = NARY_RELATIONS[fact.relation].answer_role
    return [world.surface(v) for r, v in fact.arguments if r != role and v in world.entities]


def _noun(retriever: SimulatedRetriever, rng: random.Random, fact: Fact | NaryFact) -> str:
    if isinstance(fact, NaryFact):
        return f"the {NARY_RELATIONS[fact.relation].answer_role}"
    noun = rng.choice(RELATIONS[fact.relation].nouns)
    return noun.format(head=retriever.world.surface(fact.head))


def rephrase(
    retriever: SimulatedRetriever, rng: random.Random, fact: Fact | NaryFact, question: str
) -> str:
    """Another wording of the one-hop question that asks for `fact`, if there is one."""
    if isinstance(fact, NaryFact):
        surfaces = {role: retriever.world.surface(value) for role, value in fact.arguments}
        options = [q.format_map(surfaces) for q in NARY_RELATIONS[fact.relation].questions]
    else:
        head = retriever.world.surface(fact.head)
        options = [q.format(head=head) for q in RELATIONS[fact.relation].questions]
    return rng.choice([option for option in options if option != question] or options)


def _statement(retriever: SimulatedRetriever, rng: random.Random, hop: PlannedHop) -> str:
    """The fact in words: as a retrieved sentence, as a triplet, or in any wording."""
    fact = hop.fact
    if isinstance(fact, NaryFact):
        return retriever.sentence(fact, hop.items or ()) or fact.text
    draw = rng.random()
    if draw < 0.35 and hop.items:
        sentence = retriever.sentence(fact, hop.items)
        if sentence:
            return sentence
    if draw < 0.75:
        return triplet_text(retriever.world, fact) + "."
    return fact_sentence(retriever.world, fact, rng)


def plan_hops(
    retriever: SimulatedRetriever,
    rng: random.Random,
    steps: tuple[Step, ...],
    *,
    use_memory: bool,
    max_items: int,
) -> tuple[list[PlannedHop], bool]:
    """The hops of a trajectory, and whether they lead to the answer.

    Args:
        retriever: over the question's world.
        rng: source of randomness.
        steps: of the question.
        use_memory: whether a famous fact may be stated without a retrieval.
        max_items: items per retrieval at most.
    """
    hops: list[PlannedHop] = []
    answers: list[str] = []
    for step in steps:
        question = fill_answers(step.question, answers)
        for attempt in range(MAX_ATTEMPTS):
            from_memory = (
                use_memory
                and attempt == 0
                and isinstance(step.fact, Fact)
                and retriever.world.entities[step.fact.head].famous
                and rng.random() < 0.5
            )
            answered = from_memory or rng.random() >= MISS_RATE
            items = None
            if not from_memory:
                count = rng.randint(min(3, max_items), max_items)
                items = retriever.retrieve(rng, step.fact, count, with_evidence=answered)
            hop = PlannedHop(
                question=question,
                names=_names(retriever, step.fact),
                noun=_noun(retriever, rng, step.fact),
                fact=step.fact,
                answer=step.answer,
                items=items,
                answered=answered,
                retry=attempt > 0,
            )
            hop.statement = _statement(retriever, rng, hop)
            hops.append(hop)
            if answered:
                break
            question = rephrase(retriever, rng, step.fact, question)
        else:
            return hops, False
        answers.append(step.answer)
    return hops, True


def comparison_remark(question: Question) -> str:
    """The conclusion from the last two answers of a comparison; empty for other questions."""
    if "comparison" not in question.kind:
        return ""
    first, second = question.steps[-2].answer, question.steps[-1].answer
    fact = question.steps[-1].fact
    if question.answer in ("yes", "no"):
        same = "the same" if first == second else "not the same"
        return f"{first} and {second} are {same}."
    if not isinstance(fact, Fact) or fact.relation not in RANKED:
        return ""
    return f"Between {first} and {second} the choice is {question.answer}."
