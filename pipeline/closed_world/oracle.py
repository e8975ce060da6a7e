"""Exact verdicts on the closed world: truth of statements, answers to questions, path lengths.

Purpose: the ground truth of the `closed-world` judge, and for measuring how well rewards and judges
rank trajectories. Input: a `World` and plain text in any of its wordings. Output: verdicts,
answers, and lengths of shortest paths between entities. The world is closed: a statement without a
fact is false. The texts are model output; an unreadable text gives None and never raises.
"""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from functools import lru_cache
from typing import TypeVar

from pipeline.closed_world.schema import (
    MONTHS,
    NARY_RELATIONS,
    RELATIONS,
    Fact,
    NaryFact,
    NaryRelation,
    Relation,
)
from pipeline.closed_world.world import World

_LONGEST_TEXT = 1000
_SMALL_WORDS = frozenset({"and", "of", "the"})
_AMERICAN_DATE = re.compile(r"([A-Z][a-z]+) (\d{1,2}), (\d{3,4})")
_LITERALS = {
    "year": re.compile(r"\d{3,4}"),
    "date": re.compile(rf"\d{{1,2}} (?:{'|'.join(MONTHS)}) \d{{3,4}}"),
    "number": re.compile(r"\d+ miles"),
    "word": re.compile(r"[^\W\d_]+(?: [^\W\d_]+)?"),
}


def fixed_part(wording: str) -> str:
    """The longest part of a wording between placeholders, in lower case.

    Looking for it in a text is far cheaper than matching a pattern.
    """
    return max(re.split(r"\{\w+\}", wording), key=len).casefold()


class _Wording:
    """Matches texts in one wording, ignoring case; the final punctuation mark is optional."""

    def __init__(self, wording: str) -> None:
        plain = wording.rstrip(".?")
        self._key = fixed_part(plain)
        body = re.sub(r"\\{(\w+)\\}", r"(?P<\1>.+?)", re.escape(plain))
        self._pattern = re.compile(rf"{body} ?[.?]?", re.IGNORECASE)

    def fullmatch(self, text: str) -> re.Match[str] | None:
        """The match of the whole text, with the wording's placeholders as groups, or None."""
        return self._pattern.fullmatch(text) if self._key in text.casefold() else None


AnyRelation = TypeVar("AnyRelation", Relation, NaryRelation)


def _matches(
    text: str, wordings: Iterable[tuple[AnyRelation, _Wording]]
) -> Iterator[tuple[AnyRelation, re.Match[str]]]:
    """The relations in one of whose wordings the whole text is, with the match."""
    plain = " ".join(text.split())
    for relation, wording in wordings if len(plain) <= _LONGEST_TEXT else ():
        match = wording.fullmatch(plain)
        if match is not None:
            yield relation, match


Binary = tuple[tuple[Relation, _Wording], ...]
Nary = tuple[tuple[NaryRelation, _Wording], ...]


@lru_cache(maxsize=1)
def _patterns() -> tuple[Binary, Binary, Binary, Nary, Nary]:
    """Wordings of binary statements, questions, noun phrases; of n-ary statements, questions."""
    binary = RELATIONS.values()
    return (
        tuple(
            (relation, _Wording(wording)) for relation in binary for wording in relation.readable
        ),
        tuple(
            (relation, _Wording(wording))
            for relation in binary
            for wording in (*relation.questions, *(f"Name {noun}." for noun in relation.nouns))
        ),
        tuple((relation, _Wording(noun)) for relation in binary for noun in relation.nouns),
        tuple((nary, _Wording(w)) for nary in NARY_RELATIONS.values() for w in nary.statements),
        tuple((nary, _Wording(w)) for nary in NARY_RELATIONS.values() for w in nary.questions),
    )


def _literal(text: str, kind: str) -> str | None:
    """The literal in the world's spelling; None when the text is not a literal of this kind."""
    plain = text.replace(",", "") if kind == "number" else text
    plain = _AMERICAN_DATE.sub(r"\2 \1 \3", plain) if kind == "date" else plain
    return plain if _LITERALS[kind].fullmatch(plain) else None


def _looks_like_name(text: str) -> bool:
    words = text.split()
    return all(word[0].isupper() or word.casefold() in _SMALL_WORDS for word in words)


class Oracle:
    """Verifies statements and answers questions about one world."""

    def __init__(self, world: World) -> None:
        self.world = world
        self._neighbors: dict[str, set[str]] = {}
        self._nary: dict[tuple[str, str, str], list[NaryFact]] = {}
        for key in (*world.facts, *world.nary):
            connected = world.entities_of(world.fact(key))
            for entity in connected:
                self._neighbors.setdefault(entity, set()).update(connected)
        for nary_fact in world.nary.values():
            for role, value in nary_fact.arguments:
                self._nary.setdefault((nary_fact.relation, role, value), []).append(nary_fact)

    def _named(self, surface: str, kind: str) -> tuple[str, ...]:
        """Ids of the entities of a type with this name, or without any, with this alias."""
        kinds = ("film", "book") if kind == "work" else (kind,)
        entities = self.world.entities
        ids = self.world.entities_named(surface)
        if not ids and surface.casefold().startswith("the "):
            ids = self.world.entities_named(surface[4:])
        candidates = tuple(key for key in ids if entities[key].type in kinds)
        exact = tuple(k for k in candidates if entities[k].name.casefold() == surface.casefold())
        return exact or candidates

    def verify(self, statement: str) -> bool | None:
        """Whether an atomic statement is true; None when it cannot be read.

        A statement is readable when it matches a wording of a relation (binary, n-ary or triplet),
        its head is the name or alias of an entity, and its tail has the type of the relation's
        tail. An ambiguous head gives a verdict only if the verdict is the same for all entities
        with that name.
        """
        binary, _, _, nary, _ = _patterns()
        verdicts: set[bool] = set()
        for relation, match in _matches(statement, binary):
            verdicts.update(self._verdict(relation, match["head"], match["tail"]))
        for nary_relation, match in _matches(statement, nary):
            verdicts.update(self._nary_verdict(nary_relation, match.groupdict()))
        return (True in verdicts) if verdicts else None

    def _verdict(self, relation: Relation, head: str, tail: str) -> Iterable[bool]:
        heads = self._named(head, relation.head_type)
        if not heads:
            return ()
        tails: tuple[str, ...]
        if relation.literal:
            literal = _literal(tail, relation.tail_type)
            if literal is None:
                return ()
            tails = (literal,)
        else:
            tails = self._named(tail, relation.tail_type)
            if not tails and not _looks_like_name(tail):
                return ()
        facts = (self.world.fact_of(key, relation.key) for key in heads)
        verdicts = {fact is not None and fact.tail in tails for fact in facts}
        return verdicts if len(verdicts) == 1 else ()

    def _nary_verdict(self, relation: NaryRelation, surfaces: dict[str, str]) -> Iterable[bool]:
        options: dict[str, tuple[str, ...]] = {}
        for role, kind in relation.roles:
            if kind == "word":
                options[role] = (surfaces[role],)
            elif kind in _LITERALS:
                literal = _literal(surfaces[role], kind)
                if literal is None:
                    return ()
                options[role] = (literal,)
            else:
                options[role] = self._named(surfaces[role], kind)
        resolved = [
            role for role, kind in relation.roles if kind not in _LITERALS and options[role]
        ]
        if not resolved:
            return ()
        return (bool(self._nary_matches(relation, options, resolved[0])),)

    def _nary_matches(
        self, relation: NaryRelation, options: dict[str, tuple[str, ...]], start: str
    ) -> list[NaryFact]:
        """The n-ary facts whose value of every role is one of its `options`.

        `start` is the role by which the index is searched.
        """
        return [
            fact
            for value in options[start]
            for fact in self._nary.get((relation.key, start, value), [])
            if all(own in options.get(role, (own,)) for role, own in fact.arguments)
        ]

    def answer(self, question: str) -> str | None:
        """The answer to a question in any wording; None when it is unreadable or has no answer.

        Reads one-hop questions, and chains that nest noun phrases ("the director of …").
        """
        answers = {self.world.surface(tail) for tail in self.asked(question).values()}
        return answers.pop() if len(answers) == 1 else None

    def asked(self, question: str) -> dict[str, str]:
        """The facts that a question asks for, by id, with the entity id or literal that answers.

        Of a chain it is the last fact. Empty when the question is unreadable or has no answer.
        """
        _, questions, _, _, nary = _patterns()
        facts: dict[str, str] = {}
        for relation, match in _matches(question, questions):
            head = self._resolve(match["head"], relation.head_type)
            fact = self.world.fact_of(head, relation.key) if head else None
            if fact is not None:
                facts[fact.id] = fact.tail
        for nary_relation, match in _matches(question, nary):
            roles = nary_relation.roles
            options = {
                role: (match[role],) if kind in _LITERALS else self._named(match[role], kind)
                for role, kind in roles
                if role != nary_relation.answer_role
            }
            start = next(role for role, kind in roles if kind not in _LITERALS)
            for nary_fact in self._nary_matches(nary_relation, options, start):
                facts[nary_fact.id] = dict(nary_fact.arguments)[nary_relation.answer_role]
        return facts

    def answer_type(self, question: str) -> str | None:
        """The type of entity or literal that a question asks for; None when it cannot be read.

        "work" is a film or a book. The entities that the question names need not exist.
        """
        _, questions, _, _, nary = _patterns()
        kinds = {relation.tail_type for relation, _ in _matches(question, questions)}
        kinds |= {dict(one.roles)[one.answer_role] for one, _ in _matches(question, nary)}
        return kinds.pop() if len(kinds) == 1 else None

    def _resolve(self, text: str, kind: str) -> str | None:
        """Id of the entity that a name or a nested noun phrase denotes; None if ambiguous."""
        ids = self._named(text, kind)
        if ids:
            return ids[0] if len(ids) == 1 else None
        # "does the {head} flow" matches the noun phrase in {head} without its article.
        phrases = (text, f"the {text}")
        for relation, pattern in _patterns()[2]:
            if relation.tail_type != kind:
                continue
            for phrase in phrases:
                match = pattern.fullmatch(phrase)
                head = self._resolve(match["head"], relation.head_type) if match else None
                fact = self.world.fact_of(head, relation.key) if head else None
                if fact is not None:
                    return fact.tail
        return None

    def shortest_path(self, chain: Sequence[Fact]) -> int:
        """The smallest number of facts that connect the chain's first head with its last tail.

        Binary and n-ary facts connect their entities in both directions, so shortcuts are possible.
        A literal at the end is reached only by the fact that states it. At most `len(chain)`.
        """
        start, end = chain[0].head, chain[-1].tail
        last = 0
        if end not in self.world.entities:
            end, last = chain[-1].head, 1
        distance = {start: 0}
        queue = deque([start])
        while end not in distance:
            entity = queue.popleft()
            for neighbor in self._neighbors[entity]:
                if neighbor not in distance:
                    distance[neighbor] = distance[entity] + 1
                    queue.append(neighbor)
        return distance[end] + last
