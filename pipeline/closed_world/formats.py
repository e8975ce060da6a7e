"""Closed-world questions as records of the published data sets.

Purpose: the same loaders read the closed world and the real data. Input: `Question`s. Output:
dictionaries with the fields of MuSiQue (arXiv 2108.00573), HotpotQA (arXiv 1809.09600),
2WikiMultiHopQA (arXiv 2011.01060) and NQ-open (arXiv 1906.00300). MuSiQue and NQ-open records have
one more field, the sentence that states a hop's fact (`support_sentence`, `evidence`).

The supporting paragraph of a hop is a document about the hop's subject that states its fact. Up to
half of the distractors mention an entity of the question. No distractor states a fact that is
needed to answer the question.
"""

from __future__ import annotations

import hashlib
import random
from typing import Any

from pipeline.closed_world.questions import Question, involved_entities
from pipeline.closed_world.schema import AnyFact, Document, Fact, NaryFact
from pipeline.closed_world.world import World

MUSIQUE_PARAGRAPHS = 20
CONTEXT_PARAGRAPHS = 10


class Formatter:
    """Converts questions of one world to native records, by a method for each data set.

    It indexes the world's documents.
    """

    def __init__(self, world: World) -> None:
        self.world = world
        self._numbers = {fact: number for number, fact in enumerate((*world.facts, *world.nary))}
        self._mentioning: dict[str, dict[str, Document]] = {}
        for document in world.documents:
            for fact_id in (key for keys in document.facts for key in keys):
                for entity in world.entities_of(world.fact(fact_id)):
                    self._mentioning.setdefault(entity, {})[document.id] = document

    def support(self, fact: AnyFact) -> tuple[Document, int]:
        """The first document about the fact's head that states it, and the index of its sentence.

        An n-ary fact may be in any document.
        """
        title = self.world.entities[fact.head].name
        document = next(
            document
            for document in self.world.documents_of(fact.id)
            if document.title == title or isinstance(fact, NaryFact)
        )
        return document, next(i for i, keys in enumerate(document.facts) if fact.id in keys)

    def evidence(self, fact: AnyFact) -> str:
        """The sentence that states a fact, prefixed with its subject if it does not name it."""
        document, sentence = self.support(fact)
        text = document.sentences[sentence]
        is_named = document.title in text or isinstance(fact, NaryFact)
        return text if is_named else f"{document.title}: {text}"

    def _distractors(
        self, rng: random.Random, question: Question, number: int, *, titles_once: bool
    ) -> list[Document]:
        """`number` documents that state no fact of the question.

        With `titles_once`, no two of them have the same title or the title of a gold document.
        """
        gold = {document.id for key in question.facts for document in self.world.documents_of(key)}
        titles = {self.support(fact)[0].title for fact in _binary(question)}
        near = [
            document
            for entity in sorted(involved_entities(self.world, question))
            for document in self._mentioning.get(entity, {}).values()
        ]
        rng.shuffle(near)
        documents = self.world.documents
        distractors: dict[str, Document] = {}

        def add(document: Document, limit: int) -> None:
            if len(distractors) >= limit or document.id in gold:
                return
            if titles_once and document.title in titles:
                return
            titles.add(document.title)
            distractors[document.id] = document

        for document in near:
            add(document, number // 2)
        while len(distractors) < number:
            add(documents[int(rng.random() * len(documents))], number)
        return list(distractors.values())

    def musique(self, question: Question) -> dict[str, Any]:
        """A MuSiQue record: 20 paragraphs, decomposition, aliases. All facts must be binary."""
        rng = random.Random(f"musique {self.world.seed} {question.text}")
        support = [self.support(fact)[0] for fact in _binary(question)]
        extra = MUSIQUE_PARAGRAPHS - len(support)
        paragraphs = [*support, *self._distractors(rng, question, extra, titles_once=False)]
        rng.shuffle(paragraphs)
        place = {document.id: index for index, document in enumerate(paragraphs)}
        numbers = [self._numbers[key] for key in question.facts]
        hops = len(numbers)
        return {
            "id": f"{hops}hop{'' if hops == 2 else '1'}__{'_'.join(map(str, numbers))}",
            "paragraphs": [
                {
                    "idx": index,
                    "title": document.title,
                    "paragraph_text": document.text,
                    "is_supporting": document in support,
                }
                for index, document in enumerate(paragraphs)
            ],
            "question": question.text,
            "question_decomposition": [
                {
                    "id": number,
                    "question": step.question,
                    "answer": step.answer,
                    "paragraph_support_idx": place[document.id],
                    "support_sentence": self.evidence(step.fact),
                }
                for number, step, document in zip(numbers, question.steps, support, strict=True)
            ],
            "answer": question.answer,
            "answer_aliases": list(question.aliases),
            "answerable": True,
        }

    def _context(
        self, rng: random.Random, question: Question, separator: str
    ) -> tuple[list[list[str | int]], list[list[str | list[str]]]]:
        """Supporting facts and context; `separator` precedes every sentence except the first."""
        gold = [self.support(fact) for fact in _binary(question)]
        documents = {document.id: document for document, _ in gold}
        extra = CONTEXT_PARAGRAPHS - len(documents)
        for document in self._distractors(rng, question, extra, titles_once=True):
            documents[document.id] = document
        shuffled = list(documents.values())
        rng.shuffle(shuffled)
        facts: list[list[str | int]] = [[document.title, sentence] for document, sentence in gold]
        context: list[list[str | list[str]]] = [
            [
                document.title,
                [separator * (index > 0) + text for index, text in enumerate(document.sentences)],
            ]
            for document in shuffled
        ]
        return facts, context

    def hotpotqa(self, question: Question) -> dict[str, Any]:
        """A HotpotQA record of the distractor setting, level "hard"."""
        rng = random.Random(f"hotpotqa {self.world.seed} {question.text}")
        # In the original, sentences other than the first keep the space before them.
        supporting, context = self._context(rng, question, " ")
        return {
            "_id": _digest(self.world.seed, question.text)[:24],
            "question": question.text,
            "answer": question.answer,
            "type": "comparison" if question.kind == "comparison" else "bridge",
            "level": "hard",
            "supporting_facts": supporting,
            "context": context,
        }

    def wiki2(self, question: Question) -> dict[str, Any]:
        """A 2WikiMultiHopQA record with its evidence triples."""
        rng = random.Random(f"2wiki {self.world.seed} {question.text}")
        supporting, context = self._context(rng, question, "")
        facts = _binary(question)
        heads = dict.fromkeys(fact.head for fact in facts)
        labels = [fact.relation.replace("_", " ") for fact in facts]
        entities = self.world.entities
        linked = all(fact.tail in entities for fact in facts)
        return {
            "_id": _digest(self.world.seed, question.text)[:32],
            "type": question.kind,
            "question": question.text,
            "context": context,
            "entity_ids": "_".join(heads),
            "supporting_facts": supporting,
            "evidences": [
                [self.world.surface(fact.head), label, self.world.surface(fact.tail)]
                for fact, label in zip(facts, labels, strict=True)
            ],
            "answer": question.answer,
            # In the original, the list is empty if any tail is a literal, which has no identifier.
            "evidences_id": [
                [fact.head, label, fact.tail] for fact, label in zip(facts, labels, strict=True)
            ]
            if linked
            else [],
            "answer_id": question.answer_id,
        }

    def nq(self, question: Question) -> dict[str, Any]:
        """An NQ-open record: the question and all accepted answers, with an id and evidence."""
        return {
            "question": question.text,
            "answer": [question.answer, *question.aliases],
            "id": f"nq-{self._numbers[question.facts[0]]}",
            "evidence": [self.evidence(step.fact) for step in question.steps],
        }


def _digest(seed: int, text: str) -> str:
    return hashlib.sha256(f"{seed} {text}".encode()).hexdigest()


def _binary(question: Question) -> list[Fact]:
    """The binary facts of a question's steps; only these have a document about their head."""
    return [step.fact for step in question.steps if isinstance(step.fact, Fact)]
