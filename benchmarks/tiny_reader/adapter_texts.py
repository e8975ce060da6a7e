"""Supervised trajectories in TeaRAG's grammar, for the check of the tiny reader with an adapter.

Input: the seed of a world and the kind of the contexts. Output: prompts and trajectories in
segments. "Retrieved" contexts come from the simulated retriever, as in the test. "Gold" contexts
hold gold evidence only, as in supervised fine-tuning (TeaRAG 4.3.1).
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Literal

from benchmarks.tiny_reader.encode import LabeledText, Segment, trajectory_segments
from benchmarks.tiny_reader.planned_hops import comparison_remark, fill_answers
from benchmarks.tiny_reader.simulated_retriever import Item, SimulatedRetriever, triplet_text
from benchmarks.tiny_reader.training_texts import draw_question
from pipeline.closed_world.questions import Question, Step
from pipeline.closed_world.schema import Fact
from pipeline.closed_world.world import generate_world
from pipeline.core.records import ContextItem
from pipeline.core.records import Step as TrajectoryStep
from pipeline.methods.tearag.grammar import TeaRag

SYSTEM = (
    "Answer the question step by step. In every step name the important entities, ask one "
    "subquery, open a reference to retrieve evidence, and summarise what it says. End with the "
    "final answer."
)
Contexts = Literal["gold", "retrieved"]
NUM_RETRIEVED = 5  # items of a retrieved context
_WORLD_SEED = 6_000_000
_SUMMARIES = (
    "The fact {fact} logically implies the answer: {answer}.",
    "Since {fact}, the answer is {answer}.",
    "From {fact} it follows that the answer is {answer}.",
    "The triplet {fact} directly gives the answer: {answer}.",
)


def context_items(items: Sequence[Item]) -> list[ContextItem]:
    """The retrieved items as items of a step's context, with scores of 0."""
    return [
        ContextItem("chunk" if item.title else "triplet", "", item.title, item.text, 0.0)
        for item in items
    ]


def _document(retriever: SimulatedRetriever, rng: random.Random, hop: Step) -> Item:
    document = rng.choice(retriever.world.documents_of(hop.fact.id))
    return Item(document.title, document.text)


def _gold_items(
    retriever: SimulatedRetriever, rng: random.Random, question: Question, hop: Step, fact: Fact
) -> list[Item]:
    """A document that states the fact, its triplets, and in some cases a document of another step.

    The number of items varies from step to step. With a constant number the adapter learns to stop
    by the length of the trajectory instead of by its hops, and stops early on longer contexts.
    """
    world = retriever.world
    items = [_document(retriever, rng, hop)]
    gold = triplet_text(world, fact)
    texts = (triplet_text(world, stated) for stated in retriever.stated_facts(items[0]))
    items += [Item("", text) for text in texts if text == gold or rng.random() < 0.5]
    other = _document(retriever, rng, rng.choice(question.steps))
    if other not in items and rng.random() < 0.5:
        items.append(other)
    rng.shuffle(items)
    return items


def _trajectory(
    retriever: SimulatedRetriever, rng: random.Random, question: Question, contexts: Contexts
) -> str | None:
    """A supervised trajectory in TeaRAG's grammar; None for questions with n-ary facts."""
    world = retriever.world
    answers: list[str] = []
    steps: list[TrajectoryStep] = []
    for hop in question.steps:
        if not isinstance(hop.fact, Fact):
            return None
        if contexts == "gold":
            items = _gold_items(retriever, rng, question, hop, hop.fact)
        else:
            items = retriever.retrieve(rng, hop.fact, NUM_RETRIEVED, with_evidence=True)
        fact = triplet_text(world, hop.fact)
        summary = rng.choice(_SUMMARIES).format(fact=fact, answer=hop.answer)
        head = world.surface(hop.fact.head)
        query = fill_answers(hop.question, answers)
        steps.append(TrajectoryStep([head], query, context_items(items), summary))
        answers.append(hop.answer)
    if remark := comparison_remark(question):
        steps[-1].summary += f" {remark}"
    return TeaRag().render(steps, question.answer)[0]


def adapter_texts(count: int, seed: int, contexts: Contexts) -> list[LabeledText]:
    """`count` trajectories in TeaRAG's grammar: 1 to 4 hops, and comparisons."""
    rng = random.Random(f"adapter {seed}")
    retriever = SimulatedRetriever(generate_world(_WORLD_SEED + seed))
    texts: list[LabeledText] = []
    while len(texts) < count:
        kind = rng.choices(("chain", "comparison"), (0.85, 0.15))[0]
        hops = rng.choice((1, 1, 1, 2, 2, 3, 3, 4))
        question = draw_question(retriever.world, rng, kind, hops)
        text = _trajectory(retriever, rng, question, contexts) if question else None
        if question is None or text is None:
            continue
        segments, last_end = [], 0
        for start, end, writer in TeaRag().spans(text):
            segments.append(Segment(text[start:end], writer == "model"))
            last_end = end
        segments += [Segment(text[last_end:], True)] if text[last_end:] else []
        chat = [("system", SYSTEM), ("user", question.text)]
        texts.append((trajectory_segments(chat, segments), TeaRag.name))
    return texts
