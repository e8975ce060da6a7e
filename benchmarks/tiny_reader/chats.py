"""Chats without a trajectory: the prompts that an instruct model answers directly.

Purpose: train the base model to answer ordinary prompts, to read passages, to know the famous
facts, to repeat text exactly, and to decompose a question in a dialog. Input: a simulated
retriever, which holds the world, and a random generator. Output: chats, lists of (role, content),
whose assistant messages are trained. The module also draws the system prompts of the trajectories.
"""

from __future__ import annotations

import random

from benchmarks.tiny_reader.format_prompts import format_description
from benchmarks.tiny_reader.formats import Format, random_format, tag_word
from benchmarks.tiny_reader.planned_hops import fill_answers, rephrase
from benchmarks.tiny_reader.simulated_retriever import Item, SimulatedRetriever, triplet_text
from benchmarks.tiny_reader.trajectories import render_items
from pipeline.closed_world.documents import fact_sentence
from pipeline.closed_world.questions import Question, chain_question, nary_question
from pipeline.closed_world.schema import RELATIONS, Fact, NaryFact

Chat = list[tuple[str, str]]

DONT_KNOW = "I do not know."
_DIRECT_ANSWER = (
    "You are a helpful assistant.",
    "Answer the question.",
    "Answer in a few words.",
    "Answer from memory.",
    "Give a short answer and nothing else.",
    "Reply with the answer only.",
    "You answer questions briefly.",
)
_LOOKUP = (
    "Solve the question step by step.",
    "Look things up before you answer.",
    "Break the question into parts and look up each part.",
    "You can use a retrieval tool.",
    "Use the library to find facts.",
    "Work through the question in several turns.",
    "Ask for documents whenever you need them.",
    "Every part of the question needs its own lookup.",
    "First name the things the question is about.",
    "Write down what you have found after every lookup.",
    "Finish with the answer.",
    "Keep to the required format.",
    "Retrieved texts stand between two tags.",
    "If nothing helpful comes back, ask again in other words.",
    "Stop as soon as the question is answered.",
    "Say which fact supports your answer.",
    "Never invent a fact.",
    "Use at most five lookups.",
    "Each part asks for one fact only.",
    "Fill in what you have already found.",
    "The texts may be wrong or beside the point.",
    "You are an assistant that reads documents.",
    "You are a careful researcher.",
    "Think before you look something up.",
    "Do not repeat a lookup that has worked.",
)


def direct_answer_system(rng: random.Random) -> str:
    """A system prompt that requests a direct answer, or an empty one."""
    return rng.choice(_DIRECT_ANSWER) if rng.random() < 0.7 else ""


def lookup_system(rng: random.Random) -> str:
    """A system prompt that requests retrieval; some are long, none describes a format."""
    count = rng.choice((1, 1, 1, 2, 2, 3, 5, 8, 12))
    sentences = rng.sample(_LOOKUP, count)
    if count > 4 and rng.random() < 0.5:
        # Random markup, to make the model robust to long instructions with many tags.
        fmt = random_format(rng)
        for part, tag in fmt.tags.items():
            sentences.insert(
                rng.randrange(len(sentences)),
                f"{tag.open} {tag_word(rng, part)} {tag.close}".strip(),
            )
    return rng.choice((" ", "\n")).join(sentences)


def lookup_system_with_format(rng: random.Random, fmt: Format) -> str:
    """A system prompt that requests retrieval and describes the format."""
    sentences = rng.sample(_LOOKUP, rng.choice((0, 1, 1, 2, 3, 5)))
    sentences.insert(rng.choice((0, len(sentences))), format_description(fmt, rng))
    return "\n".join(sentences)


def _question_and_answer(
    retriever: SimulatedRetriever, rng: random.Random, fact: Fact | NaryFact
) -> tuple[str, str]:
    if isinstance(fact, NaryFact):
        question = nary_question(retriever.world, rng, fact)
    else:
        question = chain_question(retriever.world, rng, (fact,))
    return question.text, question.answer


def _question_message(rng: random.Random, question: str) -> str:
    return rng.choice(("{q}", "{q}", "{q}", "Question: {q}", "Q: {q}", "{q}\nAnswer:")).format(
        q=question
    )


def closed_book_chat(retriever: SimulatedRetriever, rng: random.Random) -> Chat:
    """Questions without passages. Famous facts are answered; others get `DONT_KNOW`."""
    world = retriever.world
    famous = [f for f in world.facts.values() if world.entities[f.head].famous]
    others = [f for f in world.facts.values() if not world.entities[f.head].famous]
    system = direct_answer_system(rng)
    chat: Chat = [("system", system)] if system else []
    for _ in range(rng.choice((1, 2, 4, 6, 8))):
        if rng.random() < 0.7:
            question, answer = _question_and_answer(retriever, rng, rng.choice(famous))
        elif rng.random() < 0.7:
            question, _ = _question_and_answer(retriever, rng, rng.choice(others))
            answer = DONT_KNOW
        else:
            chains = world.chains(rng, 2, 1)
            if not chains or world.entities[chains[0][0].head].famous:
                continue
            question, answer = chain_question(world, rng, chains[0]).text, DONT_KNOW
        chat += [("user", _question_message(rng, question)), ("assistant", answer)]
    return chat


def _passages(
    retriever: SimulatedRetriever, rng: random.Random, count: int
) -> tuple[list[Item], list[Fact]]:
    """Related passages and triplets, and the facts that they state."""
    world = retriever.world
    items: list[Item] = []
    facts: dict[str, Fact] = {}
    topic = rng.choice(list(world.facts.values()))
    while len(items) < count:
        num_wanted = min(4, count - len(items))
        for item in retriever.retrieve(rng, topic, num_wanted, with_evidence=True):
            if item in items:
                continue
            items.append(item)
            for fact in retriever.stated_facts(item):
                facts[fact.id] = fact
        topic = rng.choice(list(world.facts.values()))
    return items, list(facts.values())


def reading_chat(retriever: SimulatedRetriever, rng: random.Random, *, max_items: int) -> Chat:
    """Passages, then several questions about them. A few questions have no answer in them."""
    items, facts = _passages(retriever, rng, rng.randint(min(2, max_items), max_items))
    passages = render_items(random_format(rng), items)
    system = direct_answer_system(rng)
    chat: Chat = [("system", system)] if system else []
    stated = {fact.id for fact in facts}
    rng.shuffle(facts)
    for number, fact in enumerate(facts[: rng.randint(1, 12)]):
        if rng.random() < 0.06:
            other = rng.choice(retriever.world.facts_about(fact.head))
            if other.id not in stated and not retriever.world.entities[other.head].famous:
                fact = other
        question, answer = _question_and_answer(retriever, rng, fact)
        if fact.id not in stated:
            answer = DONT_KNOW
        message = _question_message(rng, question)
        if number == 0:
            passages_first = rng.random() < 0.8
            message = f"{passages}\n\n{message}" if passages_first else f"{message}\n\n{passages}"
        chat += [("user", message), ("assistant", answer)]
    return chat


def entity_naming_chat(retriever: SimulatedRetriever, rng: random.Random) -> Chat:
    """Naming the entities of a question, or filling an earlier answer into one."""
    world = retriever.world
    chains = world.chains(rng, rng.randint(1, 3), 1)
    if not chains:
        return []
    chain = chains[0]
    head = world.surface(chain[0].head)
    if rng.random() < 0.5:
        question = chain_question(world, rng, chain).text
        request = rng.choice(
            ("Which names occur in: {q}", "Name the entities of this question: {q}", "{q}\nNames?")
        )
        return [("user", request.format(q=question)), ("assistant", head)]
    wording = rng.choice(RELATIONS[chain[0].relation].questions)
    slot = rng.choice(("#1", "X", "it", "[1]", "..."))
    request = rng.choice(("Put {h} for {s}: {q}", "{s} is {h}. Fill in: {q}", "{q}\n{s} = {h}"))
    return [
        ("user", request.format(h=head, s=slot, q=wording.format(head=slot))),
        ("assistant", wording.format(head=head)),
    ]


def _text_to_repeat(retriever: SimulatedRetriever, rng: random.Random) -> str:
    """A sentence, a triplet, names in tags, or a line of random words and characters."""
    draw = rng.random()
    world = retriever.world
    if draw < 0.3:
        return rng.choice(rng.choice(world.documents).sentences)
    if draw < 0.5:
        return triplet_text(world, rng.choice(list(world.facts.values())))
    if draw < 0.7:
        tags = random_format(rng).tags
        names = rng.sample(list(world.entities.values()), len(tags))
        lines = (
            f"{t.open} {e.name} {t.close}".strip()
            for t, e in zip(tags.values(), names, strict=True)
        )
        return "\n".join(lines)
    words = [tag_word(rng, rng.choice(("plan", "note", "item"))) for _ in range(rng.randint(3, 12))]
    characters = [chr(rng.randint(33, 126)) for _ in range(rng.randint(0, 6))]
    numbers = [str(rng.randint(0, 3000)) for _ in range(rng.randint(0, 4))]
    pieces = [*words, *characters, *numbers]
    rng.shuffle(pieces)
    return rng.choice((" ", "", "\n", ", ")).join(pieces)


def repetition_chat(retriever: SimulatedRetriever, rng: random.Random) -> Chat:
    """A text that the assistant repeats exactly."""
    text = _text_to_repeat(retriever, rng)
    request = rng.choice(
        ("Repeat: {t}", "Repeat this:\n{t}", "{t}\n\nSay that again.", "Copy:\n{t}")
    )
    return [("user", request.format(t=text)), ("assistant", text)]


_DECOMPOSITION_SYSTEMS = (
    "Ask me one question at a time. When you know the answer, write {done} and the answer.",
    "Take the question apart. I answer every part. Close with {done} and the answer.",
    "What do you have to look up next? Once nothing is left, say {done} and then the answer.",
    "Put single questions to me until the whole question is answered; then {done} comes first.",
)
_NO_ANSWER_REPLIES = ("Not found.", "I do not know that.", "Nothing found.", "?", "No answer.")


def decomposition_chat(
    retriever: SimulatedRetriever, rng: random.Random, question: Question
) -> Chat:
    """A dialog in which the assistant asks for each hop and the user answers, without passages.

    It trains only the decomposition: the hops, their order, and when the question is answered.
    """
    world = retriever.world
    done = rng.choice(("{w}:", "[{w}]", "<{w}>", "{w} -", "{w}")).format(w=tag_word(rng, "answer"))
    system = rng.choice(_DECOMPOSITION_SYSTEMS).format(done=done)
    chat: Chat = [("system", system), ("user", _question_message(rng, question.text))]
    answers: list[str] = []
    for step in question.steps:
        subquestion = fill_answers(step.question, answers)
        chat.append(("assistant", subquestion))
        if rng.random() < 0.1:
            retry = rephrase(retriever, rng, step.fact, subquestion)
            chat += [("user", rng.choice(_NO_ANSWER_REPLIES)), ("assistant", retry)]
        reply = step.answer
        if isinstance(step.fact, Fact) and rng.random() < 0.5:
            as_triplet = rng.random() < 0.5
            reply = (
                triplet_text(world, step.fact)
                if as_triplet
                else fact_sentence(world, step.fact, rng)
            )
        chat.append(("user", reply))
        answers.append(step.answer)
    return [*chat, ("assistant", f"{done} {question.answer}")]
