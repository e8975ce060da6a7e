"""Questions over the closed world with their decomposition; each has exactly one answer.

Purpose: turn chains and pairs of facts into question texts. Input: a `World` and facts of it.
Output: `Question`s: single-hop, chains of 2 to 4 hops (MuSiQue's decomposition with `#1`
placeholders, arXiv 2108.00573), comparisons (HotpotQA, arXiv 1809.09600), bridge comparisons and
inferences (2WikiMultiHopQA, arXiv 2011.01060). `splits` selects the questions of every split.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass

from pipeline.closed_world.schema import (
    NARY_RELATIONS,
    RELATIONS,
    VOCABULARY,
    AnyFact,
    Fact,
    NaryFact,
    Relation,
    literal_rank,
)
from pipeline.closed_world.world import World

_NAME_SHARE = 0.12
_TABLES = VOCABULARY["comparisons"]
# (question, whether the greater value wins) by the relation whose years, dates or lengths they rank
RANKED: dict[str, list[tuple[str, bool]]] = _TABLES["ranked"]
# questions answered by yes or no, by the relation whose tails they compare
SAME: dict[str, list[str]] = _TABLES["same"]
# relations to persons whose facts bridge comparisons compare; a relation is also the person's role
BRIDGES: list[str] = _TABLES["bridges"]
BRIDGE_RANKED: list[tuple[str, bool]] = _TABLES["bridge_ranked"]
BRIDGE_SAME: dict[str, list[str]] = _TABLES["bridge_same"]
# questions by the pair of relations that a single word expresses
INFERENCES: dict[tuple[str, ...], list[str]] = {
    tuple(table["relations"]): table["questions"] for table in VOCABULARY["inferences"]
}


@dataclass(frozen=True, slots=True)
class Step:
    """One hop: a question, in which #k is the answer of step k, with its fact and answer."""

    question: str
    fact: AnyFact
    answer: str


@dataclass(frozen=True, slots=True)
class Question:
    """One question; `kind` is single, compositional, inference, comparison or bridge_comparison.

    Attributes:
        kind: type in the terms of 2WikiMultiHopQA; HotpotQA's bridge is compositional or inference.
        text: the whole question.
        answer: in the documents' spelling, or yes or no.
        aliases: other accepted spellings.
        answer_id: entity id of the answer; None for literals and for yes and no.
        steps: the hops in an order in which they can be solved.
    """

    kind: str
    text: str
    answer: str
    aliases: tuple[str, ...]
    answer_id: str | None
    steps: tuple[Step, ...]

    @property
    def facts(self) -> tuple[str, ...]:
        """Ids of the facts that answer the question's steps."""
        return tuple(step.fact.id for step in self.steps)


def accepted_answers(world: World, tail: str) -> tuple[str, ...]:
    """Accepted spellings of a tail: its surface first, then its unambiguous other spellings.

    The base of a qualified name is accepted, because the question determines the entity's type.
    """
    entity = world.entities.get(tail)
    if entity is not None:
        is_qualified = entity.name.endswith(")")
        aliases = [
            alias
            for alias in entity.aliases
            if is_qualified or len(world.entities_named(alias)) == 1
        ]
        return (entity.name, *aliases)
    parts = tail.split()
    if len(parts) == 3:
        return tail, f"{parts[1]} {parts[0]}, {parts[2]}"
    return (tail, parts[0]) if len(parts) == 2 and parts[1] == "miles" else (tail,)


def involved_entities(world: World, question: Question) -> frozenset[str]:
    """Ids of all entities in the facts of the question's steps."""
    return frozenset(entity for step in question.steps for entity in world.entities_of(step.fact))


def _ask(relation: Relation, rng: random.Random, head: str) -> str:
    """A one-hop question about a head, which may be a noun phrase that starts with "the"."""
    if rng.random() < _NAME_SHARE:
        text = f"Name {rng.choice(relation.nouns)}."
    else:
        text = rng.choice(relation.questions)
    return text.format(head=head).replace("the the ", "the ")


def _step(world: World, rng: random.Random, fact: Fact, head: str | None = None) -> Step:
    question = _ask(RELATIONS[fact.relation], rng, head or world.surface(fact.head))
    return Step(question, fact, world.surface(fact.tail))


def _with_answer(world: World, kind: str, text: str, tail: str, steps: Sequence[Step]) -> Question:
    """The question whose answer is `tail` (an entity id or a literal)."""
    answer, *aliases = accepted_answers(world, tail)
    answer_id = tail if tail in world.entities else None
    return Question(kind, text, answer, tuple(aliases), answer_id, tuple(steps))


def chain_question(world: World, rng: random.Random, chain: Sequence[Fact]) -> Question:
    """The question for the last tail of a chain, with a nested noun phrase for every earlier fact.

    Example: "In which country is the city where the director of Silver Lantern was born?"
    """
    pair = tuple(fact.relation for fact in chain)
    steps = [
        _step(world, rng, fact, f"#{number}" if number else None)
        for number, fact in enumerate(chain)
    ]
    inferred = INFERENCES.get(pair) if len(pair) == 2 else None
    if inferred:
        text = rng.choice(inferred).format(a=world.surface(chain[0].head))
        return _with_answer(world, "inference", text, chain[-1].tail, steps)
    if len(chain) == 1:
        return _with_answer(world, "single", steps[0].question, chain[0].tail, steps)
    head = world.surface(chain[0].head)
    for fact in chain[:-1]:
        noun = rng.choice(RELATIONS[fact.relation].nouns)
        head = noun.format(head=head).replace("the the ", "the ")
    text = _ask(RELATIONS[chain[-1].relation], rng, head)
    return _with_answer(world, "compositional", text, chain[-1].tail, steps)


def nary_question(world: World, rng: random.Random, fact: NaryFact) -> Question:
    """A single-hop question for one argument of an n-ary fact; it names the other arguments."""
    relation = NARY_RELATIONS[fact.relation]
    surfaces = {role: world.surface(value) for role, value in fact.arguments}
    tail = dict(fact.arguments)[relation.answer_role]
    text = rng.choice(relation.questions).format_map(surfaces)
    return _with_answer(world, "single", text, tail, [Step(text, fact, world.surface(tail))])


def comparison_question(
    world: World, rng: random.Random, first: Fact, second: Fact
) -> Question | None:
    """Asks which of two heads ranks first, or whether their tails are the same; None for a tie.

    Both facts must have the same relation, one of `RANKED` or `SAME`.
    """
    steps = (_step(world, rng, first), _step(world, rng, second))
    key, facts = first.relation, (first, second)
    same, ranked = SAME.get(key), RANKED.get(key, [])
    return _compared(world, rng, "comparison", facts, facts, steps, same, ranked)


def _compared(
    world: World,
    rng: random.Random,
    kind: str,
    facts: tuple[Fact, Fact],
    ends: tuple[Fact, Fact],
    steps: tuple[Step, ...],
    same: list[str] | None,
    ranked: list[tuple[str, bool]],
) -> Question | None:
    """Compares the heads of two facts by the tails of two others; None for a tie.

    Args:
        world: the world of the facts.
        rng: source of randomness.
        kind: of the question.
        facts: whose heads are compared.
        ends: whose tails decide.
        steps: of the question.
        same: wordings that ask whether the tails are the same; None to ask which one ranks first.
        ranked: wordings that ask which one ranks first, and whether the greater one wins.
    """
    relation, (first, second) = RELATIONS[facts[0].relation], ends
    surfaces = {
        "type": relation.head_type,
        "role": relation.key,
        "a": world.surface(facts[0].head),
        "b": world.surface(facts[1].head),
    }
    if same is not None:
        text = rng.choice(same).format_map(surfaces)
        answer = "yes" if first.tail == second.tail else "no"
        return Question(kind, text, answer, (), None, steps)
    template, greater = rng.choice(ranked)
    tail_type = RELATIONS[first.relation].tail_type
    first_rank, second_rank = (literal_rank(tail_type, end.tail) for end in ends)
    if first_rank == second_rank:
        return None
    winner = facts[(first_rank < second_rank) == greater]
    return _with_answer(world, kind, template.format_map(surfaces), winner.head, steps)


def bridge_comparison_question(
    world: World, rng: random.Random, bridges: tuple[Fact, Fact], key: str
) -> Question | None:
    """Compares the persons to whom two heads are related; None for a tie or a missing fact.

    Args:
        world: the world of the facts.
        rng: source of randomness.
        bridges: two facts of the same relation of `BRIDGES`.
        key: relation of the persons that is compared: "birth_date" or one of BRIDGE_SAME.
    """
    first, second = (world.fact_of(bridge.tail, key) for bridge in bridges)
    if first is None or second is None or bridges[0].tail == bridges[1].tail:
        return None
    steps = (
        _step(world, rng, bridges[0]),
        _step(world, rng, bridges[1]),
        _step(world, rng, first, "#1"),
        _step(world, rng, second, "#2"),
    )
    same = BRIDGE_SAME.get(key)
    ends = first, second
    return _compared(world, rng, "bridge_comparison", bridges, ends, steps, same, BRIDGE_RANKED)
