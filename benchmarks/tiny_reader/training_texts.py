"""Training texts of the phases that use generated worlds, and the text for the tokenizer.

Input: a random generator and the seed of a world. Output: a few hundred texts in segments, each
with the kind of its task. Training worlds have seeds from 10^9 up; smaller seeds are reserved for
the closed world and for evaluation.
"""

from __future__ import annotations

import random
from collections.abc import Iterator

from benchmarks.tiny_reader import chats
from benchmarks.tiny_reader.encode import LabeledText, chat_segments, trajectory_segments
from benchmarks.tiny_reader.formats import random_format
from benchmarks.tiny_reader.simulated_retriever import SimulatedRetriever
from benchmarks.tiny_reader.trajectories import write_trajectory
from pipeline.closed_world.names import draw_name
from pipeline.closed_world.questions import (
    BRIDGE_SAME,
    BRIDGES,
    RANKED,
    SAME,
    Question,
    bridge_comparison_question,
    chain_question,
    comparison_question,
    nary_question,
)
from pipeline.closed_world.schema import Fact
from pipeline.closed_world.world import World, generate_world

WORLD_DOCUMENTS = 600
# Loss weight of an answer read from passages, in the phases that use span weights.
READING_ANSWER_WEIGHT = 3.0
KINDS = ("path", "reading", "repeating", "naming", "closed-book", "interview")
# Shares of the kinds, in the order of `KINDS`. Per token, passages with many questions hold eight
# times as many answers as trajectories. They pay off once the form of the trajectories is learned.
Shares = tuple[float, float, float, float, float, float]
TRAJECTORY_SHARES: Shares = (0.6, 0.2, 0.05, 0.04, 0.11, 0.0)
READING_SHARES: Shares = (0.43, 0.43, 0.04, 0.03, 0.07, 0.0)
DECIDING_SHARES: Shares = (0.42, 0.34, 0.02, 0.02, 0.05, 0.15)
_SIMPLE_CHATS = {
    "repeating": chats.repetition_chat,
    "naming": chats.entity_naming_chat,
    "closed-book": chats.closed_book_chat,
}
_TOKENIZER_WORLDS = 30
_NAMED_TYPES = ("person", "person", "city", "city", "country", "company", "university", "river")
_HOPS = (1, 1, 2, 2, 2, 3, 3, 3, 4)


def _comparison(world: World, rng: random.Random) -> Question | None:
    facts = list(world.facts.values())
    if rng.random() < 0.35:
        bridges = [f for f in facts if f.relation in BRIDGES]
        first = rng.choice(bridges)
        second = rng.choice([f for f in bridges if f.relation == first.relation])
        key = rng.choice(("birth_date", *BRIDGE_SAME))
        return bridge_comparison_question(world, rng, (first, second), key)
    first = rng.choice([f for f in facts if f.relation in RANKED or f.relation in SAME])
    others = [f for f in facts if f.relation == first.relation and f.head != first.head]
    if first.relation not in RANKED and rng.random() < 0.5:
        others = [fact for fact in others if fact.tail == first.tail] or others
    return comparison_question(world, rng, first, rng.choice(others)) if others else None


def draw_question(world: World, rng: random.Random, kind: str, hops: int) -> Question | None:
    """A random question, or None if the draw does not give one.

    Args:
        world: the world.
        rng: source of randomness.
        kind: "chain", "nary" or "comparison".
        hops: number of hops of a chain.
    """
    if kind == "comparison":
        return _comparison(world, rng)
    if kind == "nary":
        return nary_question(world, rng, rng.choice(list(world.nary.values())))
    chains: list[tuple[Fact, ...]] = world.chains(rng, hops, 1)
    return chain_question(world, rng, chains[0]) if chains else None


def _any_question(world: World, rng: random.Random) -> Question | None:
    kind = rng.choices(("chain", "comparison", "nary"), (0.8, 0.14, 0.06))[0]
    return draw_question(world, rng, kind, rng.choice(_HOPS))


def trajectory_text(
    retriever: SimulatedRetriever, rng: random.Random, *, max_items: int, described: float = 0.0
) -> LabeledText | None:
    """A trajectory in a random format with its prompt; None when the draw gives no question.

    The kind is "path-N" for N hops, followed by " told" when the prompt describes the format.

    Args:
        retriever: over a world.
        rng: source of randomness.
        max_items: items per retrieval at most.
        described: probability that the prompt describes the format.
    """
    question = _any_question(retriever.world, rng)
    if question is None:
        return None
    system = chats.lookup_system(rng)
    user = rng.choice(("{q}", "{q}", "{q}", "Question: {q}")).format(q=question.text)
    fmt = random_format(rng)
    describes = described > 0 and rng.random() < described
    if describes:
        system = chats.lookup_system_with_format(rng, fmt)
    segments = write_trajectory(
        retriever, rng, question, fmt, max_items=max_items, described=describes
    )
    kind = f"path-{len(question.steps)}{' told' if describes else ''}"
    return trajectory_segments([("system", system), ("user", user)], segments), kind


def recall_phase_texts(
    rng: random.Random, world_seed: int, count: int, max_items: int
) -> list[LabeledText]:
    """Texts of the phase "recall": mostly passages with questions, no trajectories."""
    retriever = SimulatedRetriever(generate_world(world_seed, documents=WORLD_DOCUMENTS))
    texts: list[LabeledText] = []
    while len(texts) < count:
        draw = rng.random()
        if draw < 0.75:
            chat, kind = chats.reading_chat(retriever, rng, max_items=max_items), "reading"
        elif draw < 0.85:
            chat, kind = chats.repetition_chat(retriever, rng), "repeating"
        elif draw < 0.93:
            chat, kind = chats.entity_naming_chat(retriever, rng), "naming"
        else:
            chat, kind = chats.closed_book_chat(retriever, rng), "closed-book"
        texts.append((chat_segments(chat), kind))
    return [text for text in texts if text[0]]


def mixed_texts(
    rng: random.Random,
    world_seed: int,
    count: int,
    max_items: int,
    shares: Shares,
    described: float = 0.0,
) -> list[LabeledText]:
    """Texts of all kinds.

    Args:
        rng: source of randomness.
        world_seed: seed of the world.
        count: number of draws; a chat without content is dropped.
        max_items: items per retrieval at most.
        shares: of the kinds, in the order of `KINDS`.
        described: share of the trajectories whose prompt describes the format.
    """
    retriever = SimulatedRetriever(generate_world(world_seed, documents=WORLD_DOCUMENTS))
    texts: list[LabeledText] = []
    while len(texts) < count:
        kind = rng.choices(KINDS, shares)[0]
        if kind == "path":
            text = trajectory_text(retriever, rng, max_items=max_items, described=described)
            if text is not None:
                texts.append(text)
        elif kind == "reading":
            chat = chats.reading_chat(retriever, rng, max_items=max_items)
            texts.append((chat_segments(chat, READING_ANSWER_WEIGHT), kind))
        elif kind == "interview":
            question = _any_question(retriever.world, rng)
            if question is not None:
                chat = chats.decomposition_chat(retriever, rng, question)
                texts.append((chat_segments(chat), kind))
        else:
            texts.append((chat_segments(_SIMPLE_CHATS[kind](retriever, rng)), kind))
    return [text for text in texts if text[0]]


def tokenizer_texts(seed: int) -> Iterator[str]:
    """Text to train the tokenizer on: texts of all kinds on 30 worlds, and names."""
    for number in range(_TOKENIZER_WORLDS):
        world_seed = 10**9 * (seed + 1) + 9 * 10**8 + number
        rng = random.Random(f"tokenizer {seed} {number}")
        for segments, _ in mixed_texts(rng, world_seed, 60, 5, TRAJECTORY_SHARES):
            yield from (segment.text for segment in segments)
        # Additional names of many types, so that a syllable becomes a token.
        for _ in range(500):
            yield f"{draw_name(rng, rng.choice(_NAMED_TYPES))} {draw_name(rng, 'person')}"
