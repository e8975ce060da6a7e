"""A language model of a closed world, as the script of an endpoint: it writes and answers questions.

It reads the passages of a prompt, knows which facts they state, and answers from these facts or from
the facts of famous entities, which it remembers. It is imperfect on purpose: by the hash of a prompt
it writes something unreadable, questions with a wrong answer, with their answer or about other
passages, and it sometimes guesses.
"""

from __future__ import annotations

import json
import random
import re
from collections.abc import Iterable, Sequence
from dataclasses import replace
from zlib import crc32

from pipeline.closed_world.oracle import Oracle
from pipeline.closed_world.schema import RELATIONS, Document, Fact
from pipeline.closed_world.world import World

PASSAGE = re.compile(r'^Passage \d, "(.*?)": (.*)$', re.MULTILINE)


class WorldModel:
    """``script`` answers the prompts of `pipeline.training.synthesis`."""

    def __init__(self, world: World) -> None:
        self.world = world
        self._documents = {document.text: document for document in world.documents}
        self._remembered = {
            fact.id for fact in world.facts.values() if world.entities[fact.head].famous
        }

    def stated(self, documents: Iterable[Document]) -> set[str]:
        """The ids of the facts that documents state."""
        return {key for document in documents for keys in document.facts for key in keys}

    def answer_from(self, facts: set[str], question: str) -> str | None:
        """The answer that these facts give."""
        known = {key: fact for key, fact in self.world.facts.items() if key in facts}
        nary = {key: fact for key, fact in self.world.nary.items() if key in facts}
        return Oracle(replace(self.world, facts=known, nary=nary)).answer(question)

    def documents_of(self, texts: Iterable[str]) -> list[Document]:
        return [self._documents[text] for text in texts]

    def answer_from_memory(self, question: str) -> str | None:
        return self.answer_from(self._remembered, question)

    def script(self, prompt: str, _: int) -> str:
        """The reply to a prompt, the same each time."""
        documents = self.documents_of(text for _, text in PASSAGE.findall(prompt))
        rng = random.Random(crc32(prompt.encode()))
        if prompt.startswith("Write"):
            return self._written(prompt, documents, rng)
        question = prompt.rpartition("Question: ")[2]
        answer = self.answer_from(self.stated(documents) | self._remembered, question)
        if rng.random() < 0.03 or (answer is None and rng.random() < 0.2):
            answer = self.world.surface(rng.choice(list(self.world.facts.values())).tail)
        return f"So:\n```json\n{json.dumps({'answer': answer})}\n```"

    def _written(self, prompt: str, documents: Sequence[Document], rng: random.Random) -> str:
        bridge = re.search(r'passage 1 leads to "(.*?)", and', prompt)
        last = documents[-1]
        before = self._facts(documents[0], bridge.group(1)) if bridge else []
        first = rng.choice(before) if before else None
        seconds = [
            (fact, sentence)
            for fact, sentence in self._facts(last)
            if not bridge or (first and fact.head == first[0].tail)
        ]
        if not seconds or rng.random() < 0.05:
            return "I cannot write a question about that."
        fact, sentence = rng.choice(seconds)
        hops = [self._hop(fact, sentence, "#1" if first else self.world.surface(fact.head))]
        subject = self.world.surface(fact.head)
        if first:
            hops.insert(0, self._hop(*first, self.world.surface(first[0].head)))
            subject = (
                RELATIONS[first[0].relation].nouns[0].format(head=self.world.surface(first[0].head))
            )
        question = RELATIONS[fact.relation].questions[0].format(head=subject)
        mistake = rng.random()
        if mistake < 0.1:  # a wrong answer
            hops[-1] = self._hop(*rng.choice(self._facts(last)), "#1" if first else subject)
        elif mistake < 0.15:  # a question that gives its answer away
            question = f"{question.rstrip('?')}, {hops[-1]['answer']}?"
        elif mistake < 0.25:  # a question that the passages do not answer
            other = rng.choice(list(self.world.facts.values()))
            question = (
                RELATIONS[other.relation].questions[0].format(head=self.world.surface(other.head))
            )
        elif mistake < 0.35:  # a question that the last passage answers alone
            other, stated = rng.choice(self._facts(last))
            question = (
                RELATIONS[other.relation].questions[0].format(head=self.world.surface(other.head))
            )
            hops[-1] = self._hop(other, stated, "#1" if first else subject)
        written = {"question": question, **({"hops": hops} if first else hops[0])}
        written["question"] = question
        return json.dumps(written)

    def _hop(self, fact: Fact, sentence: str, subject: str) -> dict[str, str]:
        question = RELATIONS[fact.relation].questions[0].format(head=subject)
        answer = self.world.surface(fact.tail)
        return {"question": question, "answer": answer, "evidence": sentence}

    def _facts(self, document: Document, tail: str | None = None) -> list[tuple[Fact, str]]:
        return [
            (fact, sentence)
            for sentence, keys in zip(document.sentences, document.facts, strict=True)
            for key in keys
            if (fact := self.world.facts.get(key))
            and (tail is None or self.world.surface(fact.tail) == tail)
        ]
