"""Draws the questions of every data set and split without overlap.

Input: a `World` and the sizes of the splits train, sampling, dev and test. Output: lists of
`Question`s by (data set, split), and the positions of the unseen test questions. Some entities are
held out: a share of every test split is about them only, and no question of another split involves
them. Training chains avoid the facts of single-hop sampling, dev and test questions, because every
hop of a training chain is also a one-hop example (TeaRAG, arXiv 2511.05385, section 4.3.1).
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial

from pipeline.closed_world.questions import Question
from pipeline.closed_world.regions import Region
from pipeline.closed_world.world import World
from pipeline.core.errors import InputError

Proposer = Callable[[], Iterator[Question]]

SPLITS = ("train", "sampling", "dev", "test")
DATASETS = ("nq", "musique", "hotpotqa", "wiki2")
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
# Single-hop questions about the famous core, which a model that knows it answers without a search.
_FAMOUS_SHARE = 0.2
# A kind of question is exhausted after this many consecutive calls of its proposer without a
# question, or this many consecutive proposals that were drawn before.
_MAX_EMPTY_CALLS = 20
_MAX_STALE_PROPOSALS = 3000


@dataclass(frozen=True, slots=True)
class DrawnQuestions:
    """The questions of one data set and split; `unseen` holds positions in `questions`."""

    questions: tuple[Question, ...]
    unseen: frozenset[int]


class _QuestionDrawer:
    """Draws every question at most once, in any of its wordings."""

    def __init__(self) -> None:
        self.used_facts: set[tuple[str, ...]] = set()
        self.used_texts: set[str] = set()
        self.single_hop_facts: set[str] = set()

    def draw(
        self,
        propose: Proposer,
        number: int,
        description: str,
        *,
        training: bool,
    ) -> list[Question]:
        """`number` new questions; `training` ones avoid the facts of single-hop questions.

        Raises:
            InputError: the world holds too few such questions.
        """
        drawn: list[Question] = []
        stale = 0
        for question in _repeat(propose) if number else ():
            stale += 1
            if stale > _MAX_STALE_PROPOSALS:
                break
            facts = question.facts
            key = tuple(sorted(facts)) if question.kind.endswith("comparison") else facts
            if key in self.used_facts or question.text in self.used_texts:
                continue
            if training and any(fact in self.single_hop_facts for fact in facts):
                continue
            self.used_facts.add(key)
            self.used_texts.add(question.text)
            drawn.append(question)
            stale = 0
            if len(facts) == 1:
                self.single_hop_facts.add(facts[0])
            if len(drawn) == number:
                break
        if len(drawn) < number:
            raise InputError(
                f"the closed world holds only {len(drawn)} of {number} {description} questions; "
                "raise documents or lower the sizes"
            )
        return drawn


def _repeat(propose: Proposer) -> Iterator[Question]:
    """Proposals without end, or until `_MAX_EMPTY_CALLS` consecutive calls gave none."""
    empty_calls = 0
    while empty_calls < _MAX_EMPTY_CALLS:
        empty_calls += 1
        for question in propose():
            empty_calls = 0
            yield question


def _parts(number: int, shares: Mapping[str, float]) -> dict[str, int]:
    """Divides a number by shares; the first part gets the rounding remainder."""
    parts = {name: int(number * share) for name, share in shares.items()}
    parts[next(iter(parts))] += number - sum(parts.values())
    return parts


def _draw(
    drawer: _QuestionDrawer,
    region: Region,
    rng: random.Random,
    dataset: str,
    split: str,
    number: int,
    famous_share: float,
    comparison_share: float,
) -> list[Question]:
    """Questions of one data set and split from one region, in random order."""
    proposers: dict[str, tuple[Proposer, float]]
    famous_share = famous_share if region.famous else 0.0
    if dataset == "nq":
        famous = _FAMOUS_SHARE if region.famous else 0.0
        proposers = {
            "single-hop": (partial(region.singles, rng, region.facts), 1 - _NARY_SHARE - famous),
            "n-ary": (partial(region.nary_singles, rng), _NARY_SHARE),
            "famous": (partial(region.singles, rng, region.famous), famous),
        }
    elif dataset == "musique":
        of_chains = (1 - comparison_share) / len(_MUSIQUE_HOPS)
        proposers = {
            f"{hops}-hop": (partial(region.chains, rng, hops, famous_share), of_chains)
            for hops in _MUSIQUE_HOPS
        }
        proposers["comparison"] = (partial(region.comparisons, rng), comparison_share)
    elif dataset == "hotpotqa":
        proposers = {
            "bridge": (partial(region.chains, rng, 2, famous_share), 0.5),
            "comparison": (partial(region.comparisons, rng), 0.5),
        }
    else:
        by_type: dict[str, Proposer] = {
            "compositional": partial(region.compositional, rng, famous_share),
            "comparison": partial(region.comparisons, rng),
            "bridge_comparison": partial(region.bridge_comparisons, rng),
            "inference": partial(region.inferences, rng),
        }
        proposers = {name: (by_type[name], share) for name, share in _WIKI_TYPES.items()}
    parts = _parts(number, {name: share for name, (_, share) in proposers.items()})
    drawn = [
        question
        for name, (propose, _) in proposers.items()
        for question in drawer.draw(
            propose,
            parts[name],
            f"{dataset} {split} {name}{' (unseen entities)' if region.held_out else ''}",
            training=split == "train",
        )
    ]
    rng.shuffle(drawn)
    return drawn


def _hold_out(world: World, rng: random.Random) -> frozenset[str]:
    """Ids of the entities for unseen test questions; none of them is famous.

    Families are held out together. Otherwise few inference chains would stay within the set.
    """
    candidates = [entity.id for entity in world.entities.values() if not entity.famous]
    rng.shuffle(candidates)
    held_out: set[str] = set()
    for start in candidates:
        if len(held_out) >= _HELD_OUT_SHARE * len(candidates):
            break
        held_out.add(start)
        for relations in (("spouse", "father"), ("father", "father")):
            entity = start
            for key in relations:
                fact = world.fact_of(entity, key)
                if fact is None or world.entities[fact.tail].famous:
                    break
                entity = fact.tail
                held_out.add(entity)
    return frozenset(held_out)


def draw_questions(
    world: World,
    sizes: Mapping[str, int],
    *,
    unseen_share: float = UNSEEN_SHARE,
    famous_share: float = 0.0,
    comparison_share: float = 0.0,
) -> dict[tuple[str, str], DrawnQuestions]:
    """All questions by (data set, split); the draw depends on the world's seed and the sizes.

    Another size changes its own questions and all questions drawn later: test questions come first,
    then dev, sampling and training questions.

    Args:
        world: source of the questions.
        sizes: "<dataset>_<split>" -> number of questions; missing ones are 0.
        unseen_share: share of each test split whose entities occur in no other split's question.
        famous_share: share of MuSiQue's chains, HotpotQA's bridges and 2WikiMultiHopQA's
            compositional questions in which at least one hop is about a famous entity. Unseen
            questions are excluded. The share is smaller if the world has too few such chains.
        comparison_share: share of MuSiQue's training questions that compare two facts, of which the
            data set has none: a cold start with them teaches answers that a guess may hit.

    Raises:
        InputError: more questions than the world holds.
    """
    # Single-hop questions come first, so that training chains can avoid their facts. Training comes
    # last and gets the remaining questions.
    order = [(dataset, split) for split in reversed(SPLITS) for dataset in DATASETS]
    rng = random.Random(f"questions {world.seed}")
    held_out = _hold_out(world, rng)
    unseen = Region(world, held_out, held_out=True)
    seen = Region(world, frozenset(world.entities) - held_out, held_out=False)
    drawer = _QuestionDrawer()
    drawn: dict[tuple[str, str], DrawnQuestions] = {}
    for dataset, split in order:
        number = sizes.get(f"{dataset}_{split}", 0)
        if not number:
            continue
        num_unseen = round(number * unseen_share) if split == "test" else 0
        unseen_questions = _draw(drawer, unseen, rng, dataset, split, num_unseen, 0.0, 0.0)
        compared = comparison_share if split == "train" else 0.0
        seen_questions = _draw(
            drawer, seen, rng, dataset, split, number - num_unseen, famous_share, compared
        )
        marked = [(True, question) for question in unseen_questions]
        marked += [(False, question) for question in seen_questions]
        rng.shuffle(marked)
        drawn[dataset, split] = DrawnQuestions(
            tuple(question for _, question in marked),
            frozenset(position for position, (is_unseen, _) in enumerate(marked) if is_unseen),
        )
    return drawn
