"""Supervised reasoning step of one hop (TeaRAG, arXiv 2511.05385, 4.3.1, steps 1, 2, 4 and 5).

Input: a hop with its question, answer, gold chunks and their triplets. Output: a `Step`, or the
reason why the hop has none.

Key entities. The paper takes the entities of the supporting triplets. One of them is the answer,
which is unknown before retrieval. A policy trained to write it would learn to guess, and it would
violate the consistency reward (eq. 7), which requires every key entity to occur in the subquery.
This module therefore keeps the entities that the subquery mentions, in the subquery's spelling. If
it mentions none, the gold paragraph's other entities, its title and earlier answers are matched
against the subquery, first in full and then in part.

Supporting triplets, selected without a model. A supporting triplet has the hop's answer in its head
or tail and shares something with the question. The best-scoring triplets are kept. The criteria, in
order: the question names the other end, one end is exactly the answer, share of the triplet's words
that occur in the question. A triplet that contains the answer by chance is rejected: "Dodge County
is in Wisconsin" does not support "What does Jefferson County share a border with?". Hyperedges are
selected in the same way; their ends are all participating entities.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal

from pipeline.core.records import Chunk, ContextItem, Hyperedge, Step, Triplet
from pipeline.sft_data.mentions import (
    Finder,
    content_words,
    longest_mentions,
    mention,
    shared_name,
    words,
)
from pipeline.sft_data.templates import summary

MAX_SUPPORTING = 2
MAX_ENTITIES = 3
_STOP_WORDS = frozenset((
    "a", "an", "and", "are", "as", "at", "be", "by", "did", "do", "does", "for", "from", "had",
    "has", "have", "in", "is", "it", "of", "on", "or", "s", "that", "the", "their", "this",
    "to", "was", "were", "what", "when", "where", "which", "who", "whom", "whose", "how",
    "with",
))  # fmt: skip

Fact = Triplet | Hyperedge


@dataclass(slots=True)
class Hop:
    """One hop of a decomposed question with its golden evidence.

    Attributes:
        question_id: of the whole question.
        number: position of the hop, from 1.
        question: the hop's question, its placeholders replaced by earlier answers.
        answer: the hop's gold answer.
        earlier_answers: answers of earlier hops that the question contains.
        title: of the gold paragraph.
        chunks: the chunks of the gold paragraph.
        source: how these were found (`sft_data.paragraphs`); None without them.
        facts: triplets or hyperedges of these chunks.
        fault: why the hop has no step; None as long as it may have one.
    """

    question_id: str
    number: int
    question: str
    answer: str
    earlier_answers: tuple[str, ...] = ()
    title: str = ""
    chunks: list[Chunk] = field(default_factory=list)
    facts: Sequence[Fact] = ()
    fault: str | None = None
    source: Literal["text", "overlap", "own"] | None = None

    @property
    def id(self) -> str:
        return f"{self.question_id}#{self.number}"


@dataclass(frozen=True, slots=True)
class StepOptions:
    """The contents of a step's context besides its supporting facts.

    Attributes:
        others: the question's other hops.
        other_paragraph: probability that the context also holds another hop's gold paragraph. It is
            the same for every number of hops; the size of a context therefore does not reveal how
            many hops the question has.
        other_facts: probability of each further fact of the shown paragraphs.
        kinds: kinds of items that the configured retrieval shows.
        from_memory: the step answers without a search.
    """

    others: Sequence[Hop] = ()
    other_paragraph: float = 0.0
    other_facts: float = 0.0
    kinds: tuple[str, ...] = ("chunk", "triplet")
    from_memory: bool = False


def ends(fact: Fact) -> list[str]:
    """Head and tail of a triplet, or all entities of a hyperedge."""
    return fact.entities if isinstance(fact, Hyperedge) else [fact.head, fact.tail]


def supporting_facts(hop: Hop) -> list[Fact]:
    """The best-scoring facts that answer the hop's question, at most `MAX_SUPPORTING`.

    Empty when no fact supports the answer. The module's docstring lists the criteria.
    """
    scored = [(score, fact) for fact in hop.facts if (score := _support(hop, fact)) is not None]
    if not scored:
        return []
    best = max(score for score, _ in scored)
    return [fact for score, fact in scored if score == best][:MAX_SUPPORTING]


def key_entities(hop: Hop, supporting: Sequence[Fact]) -> list[str]:
    """At most `MAX_ENTITIES` entities that the subquery mentions; see the module's docstring."""
    entities = _usable(hop.question, [name for fact in supporting for name in ends(fact)])
    if not entities:
        nearby = [name for fact in hop.facts for name in ends(fact)]
        candidates = [*hop.earlier_answers, hop.title, *nearby]
        entities = _usable(hop.question, candidates) or _usable(
            hop.question, candidates, shared_name
        )
        # These candidates include common nouns such as "city" and "film"; names are preferred.
        names = [name for name in entities if name.casefold() != name or name[0].isdigit()]
        entities = names or entities
    return entities[:MAX_ENTITIES]


def build_step(
    hop: Hop, supporting: Sequence[Fact], rng: random.Random, options: StepOptions
) -> Step | None:
    """The step of a hop, or None; ``hop.fault`` then holds the reason.

    The simulated context follows the paper: the gold paragraph, as the corpus's chunks, with the
    supporting triplets inserted at random positions. It holds all golden evidence of the kinds that
    retrieval shows; ``options`` add other items.
    """
    if not supporting:
        hop.fault = "no supporting triplet"
        return None
    entities = key_entities(hop, supporting)
    if not entities:
        hop.fault = "no key entity in the subquery"
        return None
    chunks = context_chunks(hop, options, rng)
    context = passages(chunks) if "chunk" in options.kinds else []
    if {"triplet", "hyperedge"} & set(options.kinds):
        insert_facts(context, supporting, hop.facts, options.other_facts, rng)
    return Step(
        entities=entities,
        subquery=hop.question,
        context=context,
        summary=summary([fact.text for fact in supporting], hop.answer, rng),
    )


def context_chunks(hop: Hop, options: StepOptions, rng: random.Random) -> list[Chunk]:
    """The hop's gold chunks and, with probability ``other_paragraph``, one of another hop."""
    chunks = list(hop.chunks)
    candidates = [one for one in options.others if one.chunks and one.chunks[0] not in chunks]
    if candidates and rng.random() < options.other_paragraph:
        chunks.insert(rng.randint(0, len(chunks)), rng.choice(candidates).chunks[0])
    return chunks


def passages(chunks: Sequence[Chunk]) -> list[ContextItem]:
    """The chunks as items of a simulated context, with scores of 0."""
    return [ContextItem("chunk", chunk.id, chunk.title, chunk.text, 0.0) for chunk in chunks]


def insert_facts(
    context: list[ContextItem],
    supporting: Sequence[Fact],
    others: Sequence[Fact],
    share: float,
    rng: random.Random,
) -> None:
    """Insert facts into ``context`` at random positions, in place.

    Inserts all ``supporting`` facts, and each of ``others`` with probability ``share``.
    """
    texts = {fact.text for fact in supporting}
    extra = [fact for fact in others if fact.text not in texts and rng.random() < share]
    for fact in (*supporting, *extra):
        kind: Literal["hyperedge", "triplet"] = (
            "hyperedge" if isinstance(fact, Hyperedge) else "triplet"
        )
        item = ContextItem(kind, fact.id, "", fact.text, 0.0)
        context.insert(rng.randint(0, len(context)), item)


def _support(hop: Hop, fact: Fact) -> tuple[bool, bool, float] | None:
    """Score of a fact as an answer to the hop's question; None when it does not support one.

    The score is (the question names another end, an end is exactly the answer, share of the fact's
    remaining words that occur in the question).
    """
    answer = content_words(hop.answer)
    answer_ends = [end for end in ends(fact) if mention(end, hop.answer) is not None]
    if not answer_ends:
        return None
    exact = any(content_words(end) == answer for end in answer_ends)
    other_ends = [end for end in ends(fact) if end not in answer_ends]
    named = any(mention(hop.question, end) is not None for end in other_ends)
    question_words = set(words(hop.question))
    fact_words = set(words(fact.text)) - set(answer) - _STOP_WORDS
    shared = len(fact_words & question_words) / len(fact_words) if fact_words else 0.0
    return (named, exact, round(shared, 6)) if named or shared else None


def _usable(question: str, names: Sequence[str], find: Finder = mention) -> list[str]:
    """Mentioned names that fit on the entity line: no separator (";"), longer than one letter."""
    mentioned = longest_mentions(question, names, find)
    return list(dict.fromkeys(name for name in mentioned if ";" not in name and len(name) > 1))
