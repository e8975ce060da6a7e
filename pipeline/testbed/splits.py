"""Draws the questions of every dataset and split, so that no two splits share one.

Purpose: questions to train on, to sample on, to develop on and to test on. Input: a `World` and
the sizes wanted. Output: lists of `Question`s by (dataset, split), and which test questions are
unseen. Some entities are held out: a share of every test split speaks of them only, and no
question of another split does. The facts of single-hop sampling, dev and test questions are kept
out of all training chains, because every hop of a training chain is also a one-hop example
(TeaRAG, arXiv 2511.05385, section 4.3.1).
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from pipeline.errors import InputError
from pipeline.testbed import comparisons
from pipeline.testbed.questions import (
    Question,
    bridge_comparison_question,
    chain_question,
    comparison_question,
    involved_entities,
    nary_question,
)
from pipeline.testbed.schema import Fact
from pipeline.testbed.world import World

SPLITS = ("train", "sampling", "dev", "test")
DATASETS = ("nq", "musique", "hotpotqa", "wiki2")
DEFAULT_SIZES: dict[str, int] = {
    "musique_train": 1200,
    "musique_sampling": 300,
    "musique_dev": 150,
    "musique_test": 200,
    "hotpotqa_sampling": 200,
    "hotpotqa_dev": 50,
    "hotpotqa_test": 100,
    "wiki2_test": 100,
    "nq_sampling": 150,
    "nq_dev": 50,
    "nq_test": 100,
}
UNSEEN_SHARE = 1 / 3

_HELD_OUT_SHARE = 0.3
_MUSIQUE_HOPS = (2, 3, 4)
# Shares of the types in the dev set of 2WikiMultiHopQA.
_WIKI_TYPES = {
    "compositional": 0.42,
    "comparison": 0.24,
    "bridge_comparison": 0.22,
    "inference": 0.12,
}
_NARY_SHARE = 0.1
# Single-hop questions about the famous core: a reader that knows it need not search there.
_FAMOUS_SHARE = 0.2
# A proposer makes this many attempts per call; when so many calls in a row come to nothing, or so
# many proposals in a row were drawn before, that kind of question counts as used up.
_ATTEMPTS = 40
_FRUITLESS_CALLS = 20
_STALE_PROPOSALS = 3000


@dataclass(frozen=True, slots=True)
class Drawn:
    """The questions of one dataset and split; `unseen` holds positions in `questions`."""

    questions: tuple[Question, ...]
    unseen: frozenset[int]


class _Region:
    """The part of a world whose entities all lie in a given set."""

    def __init__(self, world: World, entities: frozenset[str], *, held_out: bool) -> None:
        self.world = world
        self.held_out = held_out
        self.entities = entities
        self.facts = [
            fact
            for fact in world.facts.values()
            if fact.head in entities and (fact.tail not in world.entities or fact.tail in entities)
        ]
        self.famous = [fact for fact in self.facts if world.entities[fact.head].famous]
        self.nary = [
            fact
            for fact in world.nary.values()
            if all(value in entities for _, value in fact.arguments if value in world.entities)
        ]
        self.by_relation: dict[str, list[Fact]] = {}
        self.by_tail: dict[tuple[str, str], list[Fact]] = {}
        for fact in self.facts:
            self.by_relation.setdefault(fact.relation, []).append(fact)
            self.by_tail.setdefault((fact.relation, fact.tail), []).append(fact)
        self.groups: dict[str, list[list[Fact]]] = {}
        for (relation, _), group in self.by_tail.items():
            if len(group) > 1:
                self.groups.setdefault(relation, []).append(group)

    def chains(self, rng: random.Random, hops: int) -> Iterator[Question]:
        for chain in self.world.chains(rng, hops, _ATTEMPTS // 2, within=self.entities):
            yield chain_question(self.world, rng, chain)

    def inferences(self, rng: random.Random) -> Iterator[Question]:
        first, second = rng.choice(list(comparisons.INFERENCES))
        for start in rng.sample(
            starts := self.by_relation.get(first, []), min(_ATTEMPTS, len(starts))
        ):
            end = self.world.fact_of(start.tail, second)
            if end is not None and end.tail in self.entities and end.tail != start.head:
                yield chain_question(self.world, rng, (start, end))

    def singles(self, rng: random.Random, facts: Sequence[Fact]) -> Iterator[Question]:
        for fact in rng.sample(facts, min(_ATTEMPTS, len(facts))):
            yield chain_question(self.world, rng, (fact,))

    def nary_singles(self, rng: random.Random) -> Iterator[Question]:
        for fact in rng.sample(self.nary, min(_ATTEMPTS, len(self.nary))):
            yield nary_question(self.world, rng, fact)

    def _pair(self, rng: random.Random, key: str, *, alike: bool) -> tuple[Fact, Fact] | None:
        """Two facts of a relation with different heads, with the same tail if `alike`."""
        if alike:
            groups = self.groups.get(key, [])
            first, second = rng.sample(rng.choice(groups), 2) if groups else (None, None)
        else:
            facts = self.by_relation.get(key, [])
            first, second = rng.sample(facts, 2) if len(facts) > 1 else (None, None)
        return (first, second) if first and second else None

    def comparisons(self, rng: random.Random) -> Iterator[Question]:
        for _ in range(_ATTEMPTS):
            ranked = rng.random() < 0.6
            key = rng.choice(list(comparisons.RANKED if ranked else comparisons.SAME))
            pair = self._pair(rng, key, alike=not ranked and rng.random() < 0.5)
            question = pair and comparison_question(self.world, rng, *pair)
            if question:
                yield question

    def bridge_comparisons(self, rng: random.Random) -> Iterator[Question]:
        for _ in range(_ATTEMPTS):
            ranked = rng.random() < 0.6
            bridge = rng.choice(list(comparisons.BRIDGES))
            key = "birth_date" if ranked else rng.choice(list(comparisons.BRIDGE_SAME))
            pair = self._pair(rng, bridge, alike=False)
            # Half of the answers should be yes, which two facts at random hardly ever give.
            if pair and not ranked and rng.random() < 0.5:
                pair = self._alike_ends(rng, pair[0], key)
            question = pair and bridge_comparison_question(self.world, rng, pair, key)
            if question and self._holds(question):
                yield question

    def _holds(self, question: Question) -> bool:
        return involved_entities(self.world, question) <= self.entities

    def _alike_ends(self, rng: random.Random, bridge: Fact, key: str) -> tuple[Fact, Fact] | None:
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


class _Ledger:
    """Remembers what was drawn: a question is never drawn twice, in no wording."""

    def __init__(self) -> None:
        self.drawn: set[tuple[str, ...]] = set()
        self.texts: set[str] = set()
        self.single: set[str] = set()

    def take(
        self,
        propose: Callable[[], Iterator[Question]],
        number: int,
        what: str,
        *,
        training: bool,
    ) -> list[Question]:
        """`number` new questions; `training` ones avoid the facts of single-hop questions.

        Raises:
            InputError: the world holds too few such questions.
        """
        taken: list[Question] = []
        stale = 0
        for question in _repeat(propose) if number else ():
            stale += 1
            if stale > _STALE_PROPOSALS:
                break
            facts = question.facts
            key = tuple(sorted(facts)) if question.kind.endswith("comparison") else facts
            if key in self.drawn or question.text in self.texts:
                continue
            if training and any(fact in self.single for fact in facts):
                continue
            self.drawn.add(key)
            self.texts.add(question.text)
            taken.append(question)
            stale = 0
            if len(facts) == 1:
                self.single.add(facts[0])
            if len(taken) == number:
                break
        if len(taken) < number:
            raise InputError(
                f"the closed world holds only {len(taken)} of {number} {what} questions; "
                "raise documents or lower the sizes"
            )
        return taken


def _repeat(propose: Callable[[], Iterator[Question]]) -> Iterator[Question]:
    """Proposals without end; a proposer that yields nothing is asked a limited number of times."""
    idle = 0
    while idle < _FRUITLESS_CALLS:
        idle += 1
        for question in propose():
            idle = 0
            yield question


def _parts(number: int, shares: Mapping[str, float]) -> dict[str, int]:
    """Splits a number by shares; what rounding leaves over goes to the first part."""
    parts = {name: int(number * share) for name, share in shares.items()}
    parts[next(iter(parts))] += number - sum(parts.values())
    return parts


def _draw(
    ledger: _Ledger, region: _Region, rng: random.Random, dataset: str, split: str, number: int
) -> list[Question]:
    """Questions of one dataset and split from one region, in random order."""
    proposers: dict[str, tuple[Callable[[], Iterator[Question]], float]]
    if dataset == "nq":
        famous = _FAMOUS_SHARE if region.famous else 0.0
        proposers = {
            "single-hop": (
                lambda: region.singles(rng, region.facts),
                1 - _NARY_SHARE - famous,
            ),
            "n-ary": (lambda: region.nary_singles(rng), _NARY_SHARE),
            "famous": (lambda: region.singles(rng, region.famous), famous),
        }
    elif dataset == "musique":
        proposers = {
            f"{hops}-hop": (lambda hops=hops: region.chains(rng, hops), 1 / len(_MUSIQUE_HOPS))  # type: ignore[misc]
            for hops in _MUSIQUE_HOPS
        }
    elif dataset == "hotpotqa":
        proposers = {
            "bridge": (lambda: region.chains(rng, 2), 0.5),
            "comparison": (lambda: region.comparisons(rng), 0.5),
        }
    else:
        by_type: dict[str, Callable[[], Iterator[Question]]] = {
            "compositional": lambda: (
                question for question in region.chains(rng, 2) if question.kind == "compositional"
            ),
            "comparison": lambda: region.comparisons(rng),
            "bridge_comparison": lambda: region.bridge_comparisons(rng),
            "inference": lambda: region.inferences(rng),
        }
        proposers = {name: (by_type[name], share) for name, share in _WIKI_TYPES.items()}
    parts = _parts(number, {name: share for name, (_, share) in proposers.items()})
    taken = [
        question
        for name, (propose, _) in proposers.items()
        for question in ledger.take(
            propose,
            parts[name],
            f"{dataset} {split} {name}{' (unseen entities)' if region.held_out else ''}",
            training=split == "train",
        )
    ]
    rng.shuffle(taken)
    return taken


def _hold_out(world: World, rng: random.Random) -> frozenset[str]:
    """Entities for unseen test questions: families together, or few chains would join them."""
    strangers = [entity.id for entity in world.entities.values() if not entity.famous]
    rng.shuffle(strangers)
    held: set[str] = set()
    for start in strangers:
        if len(held) >= _HELD_OUT_SHARE * len(strangers):
            break
        held.add(start)
        for path in (("spouse", "father"), ("father", "father")):
            entity = start
            for key in path:
                fact = world.fact_of(entity, key)
                if fact is None or world.entities[fact.tail].famous:
                    break
                entity = fact.tail
                held.add(entity)
    return frozenset(held)


def draw_questions(
    world: World, sizes: Mapping[str, int], *, unseen_share: float = UNSEEN_SHARE
) -> dict[tuple[str, str], Drawn]:
    """All questions by (dataset, split); the draw depends on the world's seed and the sizes.

    Args:
        world: where the questions come from.
        sizes: "<dataset>_<split>" -> number of questions; what is left out is 0.
        unseen_share: share of each test split whose entities occur in no other split's question.

    Raises:
        InputError: an unknown dataset or split, or more questions than the world holds.
    """
    # Single-hop first, so that training chains can avoid their facts; training last, it may take
    # what is left.
    order = [(dataset, split) for split in reversed(SPLITS) for dataset in DATASETS]
    known = {f"{dataset}_{split}" for dataset, split in order}
    for name in sizes:
        if name not in known:
            raise InputError(f"sizes: {name!r} is none of {', '.join(sorted(known))}")
    rng = random.Random(f"questions {world.seed}")
    held_out = _hold_out(world, rng)
    unseen = _Region(world, held_out, held_out=True)
    seen = _Region(world, frozenset(world.entities) - held_out, held_out=False)
    ledger = _Ledger()
    drawn: dict[tuple[str, str], Drawn] = {}
    for dataset, split in order:
        number = sizes.get(f"{dataset}_{split}", 0)
        if not number:
            continue
        new = round(number * unseen_share) if split == "test" else 0
        marked = [(True, question) for question in _draw(ledger, unseen, rng, dataset, split, new)]
        usual = _draw(ledger, seen, rng, dataset, split, number - new)
        marked += [(False, question) for question in usual]
        rng.shuffle(marked)
        drawn[dataset, split] = Drawn(
            tuple(question for _, question in marked),
            frozenset(place for place, (new_here, _) in enumerate(marked) if new_here),
        )
    return drawn
