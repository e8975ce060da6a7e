"""Vocabulary of the closed world: entity types, relations and all their wordings.

Purpose: define every sentence and question of the closed world, and every statement that its oracle
can read. Input: ``vocabulary.toml``. Output: `RELATIONS`, `NARY_RELATIONS`, `ENTITY_TYPES`, and the
order of literals (`literal_rank`). Binary relations are functional (a head has at most one tail);
every chain of relations therefore has exactly one answer. The relations correspond to Wikidata's
properties in MuSiQue (arXiv 2108.00573) and 2WikiMultiHopQA (arXiv 2011.01060). The n-ary ones
correspond to hyperedges (arXiv 2503.21322).
"""

from __future__ import annotations

import tomllib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ENTITY_TYPES = (
    "person", "city", "country", "river", "company", "university", "film", "book", "band",
)  # fmt: skip
LITERAL_TYPES = ("year", "date", "number", "word")
MONTHS = (
    "January", "February", "March", "April", "May", "June", "July", "August", "September",
    "October", "November", "December",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Entity:
    """One entity.

    Attributes:
        id: unique in the world.
        name: unique in the world.
        type: one of `ENTITY_TYPES`.
        aliases: other surfaces, not necessarily unique.
        famous: whether it belongs to the famous core, which is the same in all worlds.
    """

    id: str
    name: str
    type: str
    aliases: tuple[str, ...]
    famous: bool


@dataclass(frozen=True, slots=True)
class Fact:
    """A binary fact; `tail` is an entity id, or the text of a year, date, number or word."""

    id: str
    head: str
    relation: str
    tail: str

    @property
    def arguments(self) -> tuple[tuple[str, str], ...]:
        """The roles and their values, as of an n-ary fact."""
        return ("head", self.head), ("tail", self.tail)


@dataclass(frozen=True, slots=True)
class NaryFact:
    """A fact with several arguments, each (role, entity id or literal)."""

    id: str
    relation: str
    arguments: tuple[tuple[str, str], ...]

    @property
    def head(self) -> str:
        """The id of the entity whose page states the fact."""
        return self.id.rsplit("/", 1)[0]


AnyFact = Fact | NaryFact


@dataclass(frozen=True, slots=True)
class Document:
    """A short document; `facts` holds the ids of the facts that each sentence states."""

    id: str
    title: str
    sentences: tuple[str, ...]
    facts: tuple[tuple[str, ...], ...]

    @property
    def text(self) -> str:
        """The sentences, separated by spaces."""
        return " ".join(self.sentences)


@dataclass(frozen=True, slots=True)
class Relation:
    """One functional binary relation and its wordings.

    Attributes:
        key: identifier, unique over the schema ("director").
        head_type: entity type of the head.
        tail_type: entity type of the tail, or one of `LITERAL_TYPES`.
        triplet: relation phrase of a triplet ("was directed by").
        statements: at least four sentences with {head} and {tail}.
        questions: at least three one-hop questions with {head}.
        nouns: noun phrases with {head}, for nesting in multi-hop questions.
    """

    key: str
    head_type: str
    tail_type: str
    triplet: str
    statements: tuple[str, ...]
    questions: tuple[str, ...]
    nouns: tuple[str, ...]

    @property
    def literal(self) -> bool:
        """Whether the tail is a literal (year, date, number or word) and not an entity."""
        return self.tail_type in LITERAL_TYPES

    @property
    def triplets(self) -> tuple[tuple[str, str, str], ...]:
        """(role, phrase, role), as of an n-ary relation."""
        return (("head", self.triplet, "tail"),)

    @property
    def readable(self) -> tuple[str, ...]:
        """The statements, and the triplet as a sentence."""
        return (*self.statements, f"{{head}} {self.triplet} {{tail}}")


@dataclass(frozen=True, slots=True)
class NaryRelation:
    """One relation with three or more arguments.

    Attributes:
        key: identifier ("cast").
        roles: (role, entity type or literal type) in order; "work" is a film or a book.
        answer_role: the role that `questions` ask for.
        statements: sentences with one placeholder per role.
        questions: questions with one placeholder per role except the answer's.
        triplets: (role, phrase, role) of the equivalent binary triplets.
    """

    key: str
    roles: tuple[tuple[str, str], ...]
    answer_role: str
    statements: tuple[str, ...]
    questions: tuple[str, ...]
    triplets: tuple[tuple[str, str, str], ...]


def _tuples(value: Any) -> Any:
    """The value with tuples in place of lists."""
    return tuple(map(_tuples, value)) if isinstance(value, list) else value


def _fields(table: dict[str, Any]) -> dict[str, Any]:
    return {name: _tuples(value) for name, value in table.items()}


VOCABULARY: dict[str, Any] = tomllib.loads(
    Path(__file__).with_name("vocabulary.toml").read_text(encoding="utf-8")
)
RELATIONS: dict[str, Relation] = {
    key: Relation(key, **_fields(table)) for key, table in VOCABULARY["relations"].items()
}
NARY_RELATIONS: dict[str, NaryRelation] = {
    key: NaryRelation(key, **_fields(table)) for key, table in VOCABULARY["nary_relations"].items()
}
ALL_RELATIONS: dict[str, Relation | NaryRelation] = {**RELATIONS, **NARY_RELATIONS}
RELATIONS_OF: dict[str, tuple[Relation, ...]] = {
    kind: tuple(relation for relation in RELATIONS.values() if relation.head_type == kind)
    for kind in ENTITY_TYPES
}


def literal_rank(kind: str, text: str) -> tuple[int, ...]:
    """Sort key of a year, date or number.

    Args:
        kind: "year" ("1954"), "date" ("12 May 1921") or "number" ("412 miles").
        text: the literal.
    """
    parts = text.split()
    if kind == "date":
        day, month, year = parts
        return int(year), MONTHS.index(month), int(day)
    return (int(parts[0]),)
