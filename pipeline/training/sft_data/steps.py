"""Hops, their supporting facts, and what cold-start steps show (TeaRAG, arXiv 2511.05385, 4.3.1).

Input: questions, gold chunks and their triplets. Output: hops, their supporting facts, and the
items of a simulated context. Every method builds its steps of these
(``cold_start`` in its package).

Supporting triplets, selected without a model. A supporting triplet has the hop's answer in its head
or tail and shares something with the question. The best-scoring triplets are kept. The criteria, in
order: the question names the other end, one end is exactly the answer, share of the triplet's words
that occur in the question. A triplet that contains the answer by chance is rejected: "Dodge County
is in Wisconsin" does not support "What does Jefferson County share a border with?". Hyperedges are
selected in the same way; their ends are all participating entities.

Methods whose contexts hold passages alone need no triplets: a sentence of the gold passage that
holds the answer takes the place of a supporting fact (`gold_sentence`).
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cache, partial
from typing import Literal

from pipeline.core.records import Chunk, ContextItem, Decomposed, Hyperedge, Question, Triplet
from pipeline.knowledge.graph.locate import Locator
from pipeline.knowledge.graph.sources import split_sentences
from pipeline.training.sft_data.mentions import content_words, mention, words
from pipeline.training.sft_data.paragraphs import Source, find_paragraph
from pipeline.training.sft_data.templates import fill, fluent

MAX_SUPPORTING = 2
_SENTENCE_WORDS = 60  # longer ones are tables and lists, which a summary cannot quote
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
        retrieved: passages that the run's retrieval shows for the question (``sft_data.context``).
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
    source: Source | None = None
    retrieved: Sequence[Chunk] = ()

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


def parts_of(question: Question) -> list[Decomposed]:
    """The question's decomposition; a single-hop question is its own only part.

    Its paragraph is the first piece of golden evidence that names an answer, and the part's answer
    is the one that it names. Without a number of hops, a question with one piece counts as
    single-hop. Empty for other questions without a decomposition.
    """
    pieces = question.evidence
    single = question.hop == "single" or (question.hop == "unknown" and len(pieces) == 1)
    if question.decomposition or not single:
        return question.decomposition
    named = ((one, piece) for piece in pieces for one in question.answers if mention(piece, one))
    answer, piece = next(named, (question.answers[0], pieces[0] if pieces else ""))
    title, colon, text = piece.partition(": ")
    title, text = (title, text) if colon else ("", piece)
    return [Decomposed(question.question, answer, title, text or None)]


def collect_hops(
    questions: Sequence[Question],
    locator: Locator,
    facts: Sequence[Fact],
    own_words: int | None,
) -> list[list[Hop]]:
    """The hops of every question, with gold chunks and their facts, or with a ``fault``.

    ``locator`` and ``own_words`` are those of `find_paragraph`, which looks for each paragraph
    once.
    """
    find = cache(partial(find_paragraph, locator, own_words))
    by_chunk: dict[str, list[Fact]] = {}
    for fact in facts:
        by_chunk.setdefault(fact.chunk_id, []).append(fact)
    hops_by_question = []
    for question in questions:
        hops: list[Hop] = []
        parts = parts_of(question)
        answers = [part.answer for part in parts]
        for number, part in enumerate(parts, start=1):
            filled = fill(part.question, answers[: number - 1])
            asked = fluent(filled or part.question)
            if not question.decomposition:
                asked = " ".join(question.question.split())  # as the policy reads it
            hop = Hop(question.question_id, number, asked, part.answer)
            hop.earlier_answers = tuple(
                answer for n, answer in enumerate(answers, 1) if f"#{n}" in part.question
            )
            if filled is None:
                hop.fault = "placeholder of a later hop"
            elif part.support_title is None or part.support_text is None:
                hop.fault = "no supporting paragraph"
            else:
                hop.title = part.support_title
                found, hop.source = find(part.support_title, part.support_text, part.answer)
                hop.chunks = list(found)
                if hop.source is None:
                    hop.fault = "paragraph not in the corpus"
                hop.facts = [fact for chunk in hop.chunks for fact in by_chunk.get(chunk.id, [])]
            hops.append(hop)
        hops_by_question.append(hops)
    return hops_by_question


def usable_hops(hops: Sequence[Sequence[Hop]]) -> list[Hop]:
    """The hops that can be learnt from."""
    return [hop for of_question in hops for hop in of_question if hop.fault is None]


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


def gold_sentence(hop: Hop) -> list[Fact]:
    """The sentence of the gold chunks that names the answer and most words of the question.

    It is a fact of its chunk, in quotation marks. Two sentences serve only if no single one does,
    because initials end a sentence wrongly ("G. Stanley Hall"). The first wins a tie. Empty, with
    ``hop.fault`` set, when none of at most 60 words names the answer.
    """
    wanted = set(words(hop.question)) - _STOP_WORDS
    found = [
        ((width, -len(wanted & set(named))), Hyperedge("", f'"{text}"', [], chunk.id))
        for chunk in hop.chunks
        for sentences in [split_sentences(chunk.text.replace('"', "'"))]
        for width in (1, 2)
        for n in range(len(sentences) - width + 1)
        if mention(text := " ".join(sentences[n : n + width]).removesuffix("."), hop.answer)
        if len(named := words(text)) <= _SENTENCE_WORDS
    ]
    if found:
        return [min(found, key=lambda one: one[0])[1]]
    hop.fault = "no sentence of the supporting paragraph names the answer"
    return []


def context_chunks(
    hop: Hop, supporting: Sequence[Fact], options: StepOptions, rng: random.Random
) -> list[Chunk]:
    """The hop's gold chunks and, with probability ``other_paragraph``, one of another hop.

    With ``hop.retrieved`` the context has as many chunks, with the gold ones of the ``supporting``
    facts at random places.
    """
    chunks = list(hop.chunks)
    if hop.retrieved:
        sources = {fact.chunk_id for fact in supporting}
        gold = [chunk for chunk in chunks if chunk.id in sources]
        known = {name for chunk in gold for name in (chunk.id, chunk.text)}  # it may be there twice
        others = [one for one in hop.retrieved if not known & {one.id, one.text}]
        context = others[: max(0, len(hop.retrieved) - len(gold))]
        for chunk in gold:
            context.insert(rng.randint(0, len(context)), chunk)
        return context
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
