"""Generation of a closed world's entities and facts.

Input: a seeded `random.Random` and the number of entities. Output: `Entity`, `Fact` and `NaryFact`
tuples, which `documents` puts into words. All binary relations are functional. A marriage gives one
fact per spouse, and a father belongs to the generation before his child. The famous core has a
fixed seed and is therefore identical in all worlds.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from functools import lru_cache
from typing import NamedTuple

from pipeline.closed_world.names import OCCUPATIONS, NameGenerator, draw_name, word
from pipeline.closed_world.schema import (
    ENTITY_TYPES,
    MONTHS,
    NARY_RELATIONS,
    RELATIONS,
    RELATIONS_OF,
    Entity,
    Fact,
    NaryFact,
)

FACTS_PER_PAGE = 4

_FAME_SEED = 20250711
_FAME_ENTITIES = 60
_FAME_FACTS = 150
_SHARES = {
    "person": 0.36,
    "film": 0.17,
    "city": 0.13,
    "book": 0.10,
    "band": 0.07,
    "company": 0.07,
    "university": 0.04,
    "river": 0.03,
    "country": 0.03,
}
# Pairs of types in which two entities may have the same name, with different qualifiers.
_NAMESAKES = (("film", "book"), ("city", "river"), ("book", "band"))
_NAMESAKE_SHARE = 0.02
_YEARS = {
    "founded": (800, 1900),
    "released": (1900, 2020),
    "published": (1700, 2020),
    "formed": (1950, 2020),
    "prize": (1900, 2020),
    "concert": (1960, 2024),
    "purchase": (1850, 2024),
}
# Binary relation -> n-ary relation that may be derived from its fact.
_NARY_FROM = {
    "star": "cast",
    "author": "prize",
    "director": "prize",
    "origin": "concert",
    "headquarters": "purchase",
}
_NARY_HOSTS = ("film", "book", "band", "company")
_NARY_SHARE = 0.3
_ROLES = {key: tuple(role for role, _ in nary.roles) for key, nary in NARY_RELATIONS.items()}
# Probability that an entity has the relation; 1 for all others. If every person had every relation,
# a reader could ignore the documents.
_PRESENCE = {"based_on": 0.35, "river": 0.7, "father": 0.6, "employer": 0.7, "alma_mater": 0.7}

_COMMON_VALUES = 3  # of each type
_COMMON_FAMILIES = 12
# Places, organizations and literals have common values. Persons and works have none: a chain goes
# through them, and many chains would share their later facts.
_WITH_COMMON = frozenset(
    {"city", "country", "river", "company", "university", "year", "date", "word"}
)


class NearMisses(NamedTuple):
    """What makes wrong answers of a world partly or accidentally right; nothing by default.

    Attributes:
        common_share: share of the facts about places, organizations, years, dates and professions
            whose value is one of `_COMMON_VALUES` of its type: a wrong path often ends at the right
            answer, and many passages hold it. Of dates only the year is common.
        family_share: share of the persons with one of `_COMMON_FAMILIES` family names.
    """

    common_share: float = 0.0
    family_share: float = 0.0


NO_NEAR_MISSES = NearMisses()


class Core(NamedTuple):
    """The famous sub-world: entities, binary facts and n-ary facts."""

    entities: tuple[Entity, ...]
    facts: tuple[Fact, ...]
    nary: tuple[NaryFact, ...]


def _aliases(name: str, kind: str) -> tuple[str, ...]:
    """Other surfaces of an entity, such as its surname or the base of a qualified name."""
    if name.endswith(")"):
        return (name[: name.rindex(" (")],)
    if kind == "person":
        first_name, family = name.split(" ")[0], name.split(" ", 1)[1]
        return family, f"{first_name[0]}. {family}"
    if kind == "country":
        return (f"Republic of {name}",)
    if kind == "band":
        return (f"The {name}",)
    return ()


def make_entities(
    rng: random.Random,
    namer: NameGenerator,
    count: int,
    prefix: str,
    *,
    famous: bool,
    family_share: float = 0.0,
) -> list[Entity]:
    """Entities of all types in fixed shares; some pairs have the same name with a qualifier.

    Args:
        rng: source of randomness.
        namer: source of unique names.
        count: number of entities.
        prefix: of the entity ids.
        famous: whether the entities belong to the famous core, which has no namesakes.
        family_share: share of the persons with a common family name, see `NearMisses`.
    """
    counts = {kind: max(2, round(share * count)) for kind, share in _SHARES.items()}
    counts["person"] += count - sum(counts.values())
    families = [word(rng, 2) for _ in range(_COMMON_FAMILIES)] if family_share else []

    def family(kind: str) -> str:
        has_common = families and kind == "person" and rng.random() < family_share
        return rng.choice(families) if has_common else ""

    names = {
        kind: [namer.new_name(rng, kind, family(kind)) for _ in range(counts[kind])]
        for kind in ENTITY_TYPES
    }
    for first, second in () if famous else _NAMESAKES:
        pairs = int(_NAMESAKE_SHARE * min(counts[first], counts[second])) + 1
        indices = zip(
            rng.sample(range(counts[first]), pairs),
            rng.sample(range(counts[second]), pairs),
            strict=True,
        )
        for i, j in indices:
            base = names[first][i]
            if base.endswith(")") or names[second][j].endswith(")"):
                continue
            names[first][i], names[second][j] = f"{base} ({first})", f"{base} ({second})"
    return [
        Entity(f"{prefix}{kind}-{index}", name, kind, _aliases(name, kind), famous)
        for kind in ENTITY_TYPES
        for index, name in enumerate(names[kind])
    ]


def _pick(rng: random.Random, pool: Sequence[str], head: str) -> str:
    """A member of the pool other than the head. The pool must have at least two members."""
    while True:
        member = pool[int(rng.random() * len(pool))]
        if member != head:
            return member


class FactGenerator:
    """Draws the facts of entities.

    Args:
        rng: source of randomness.
        entities: heads of the facts, and possible tails.
        other_tails: further entities that may be tails.
        common_share: share of the facts with a common value, see `NearMisses`.
    """

    def __init__(
        self,
        rng: random.Random,
        entities: Sequence[Entity],
        other_tails: Sequence[Entity],
        common_share: float = 0.0,
    ) -> None:
        self.rng, self.common_share = rng, common_share
        self.entities = entities
        self.pools: dict[str, list[str]] = {kind: [] for kind in ENTITY_TYPES}
        for entity in (*other_tails, *entities):
            self.pools[entity.type].append(entity.id)
        persons = [entity.id for entity in entities if entity.type == "person"]
        # Four generations: a father belongs to the previous generation, a spouse to the same one.
        self.generation = {person: index % 4 for index, person in enumerate(persons)}
        self.cohorts = [persons[start::4] for start in range(4)]
        self.spouses: dict[str, str] = {}
        for cohort in self.cohorts:
            married = [person for person in cohort if rng.random() < 0.5]
            for first, second in zip(married[::2], married[1::2], strict=False):
                self.spouses[first], self.spouses[second] = second, first

    def literal(self, kind: str, entity: str) -> str:
        """A date (birth date of a person), number (length in miles) or word (occupation)."""
        draw = self.rng.random
        if kind == "word":
            common = OCCUPATIONS[-_COMMON_VALUES:]
            return self.rng.choice(common if self._is_common(kind) else OCCUPATIONS)
        if kind == "number":
            return f"{60 + int(draw() * 2400)} miles"
        years = _COMMON_VALUES if self._is_common(kind) else 16
        year = 1850 + 34 * self.generation[entity] + int(draw() * years)
        return f"{1 + int(draw() * 28)} {MONTHS[int(draw() * 12)]} {year}"

    def year(self, relation: str) -> str:
        """A year in the range of the relation (binary or n-ary)."""
        earliest, latest = _YEARS[relation]
        if self._is_common("year"):
            earliest = latest - _COMMON_VALUES + 1
        return str(self.rng.randint(earliest, latest))

    def tail(self, key: str, entity: str) -> str | None:
        """The tail of a relation: an entity id or a literal; None when the entity has none."""
        kind = RELATIONS[key].tail_type
        if key == "spouse":
            return self.spouses.get(entity)
        if self.rng.random() >= _PRESENCE.get(key, 1.0):
            return None
        if kind == "year":
            return self.year(key)
        if RELATIONS[key].literal:
            return self.literal(kind, entity)
        if key == "father":
            generation = self.generation[entity]
            fathers = self.cohorts[generation - 1] if generation else ()
            return _pick(self.rng, fathers, entity) if len(fathers) > 1 else None
        # The last of a pool are not famous.
        pool = self.pools[kind]
        return _pick(self.rng, pool[-_COMMON_VALUES:] if self._is_common(kind) else pool, entity)

    def _is_common(self, kind: str) -> bool:
        """Whether the next value of this type is a common one."""
        if not self.common_share or kind not in _WITH_COMMON:
            return False
        return self.rng.random() < self.common_share

    def facts(self, entity: Entity, limit: int) -> list[Fact]:
        """At most `limit` facts of the entity.

        A marriage is never dropped, because the spouse's fact would then stand alone.
        """
        drawn = [
            Fact(f"{entity.id}/{relation.key}", entity.id, relation.key, tail)
            for relation in RELATIONS_OF[entity.type]
            if (tail := self.tail(relation.key, entity.id)) is not None
        ]
        # Reserves room for an n-ary fact, whose sentence is long.
        if entity.type in _NARY_HOSTS and self.rng.random() < _NARY_SHARE:
            limit -= 1
        while len(drawn) > limit:
            index = int(self.rng.random() * len(drawn))
            if drawn[index].relation != "spouse":
                del drawn[index]
        return drawn

    def nary(self, facts: Sequence[Fact]) -> list[NaryFact]:
        """N-ary facts that agree with the binary ones, at most one per head whose page has room."""
        room = dict.fromkeys((fact.head for fact in facts), FACTS_PER_PAGE)
        for fact in facts:
            room[fact.head] -= 1
        nary_facts: list[NaryFact] = []
        for fact in facts:
            key = _NARY_FROM.get(fact.relation)
            if key is None or room[fact.head] <= 0 or self.rng.random() >= 2 * _NARY_SHARE:
                continue
            room[fact.head] = 0
            arguments = tuple(zip(_ROLES[key], self._arguments(key, fact), strict=True))
            nary_facts.append(NaryFact(f"{fact.head}/{key}", key, arguments))
        return nary_facts

    def _arguments(self, key: str, fact: Fact) -> tuple[str, ...]:
        if key == "cast":
            return fact.tail, draw_name(self.rng, "character"), fact.head
        year = self.year(key)
        if key == "prize":
            return fact.tail, draw_name(self.rng, "award"), year, fact.head
        if key == "concert":
            return fact.head, _pick(self.rng, self.pools["city"], fact.tail), year
        return fact.head, _pick(self.rng, self.pools["company"], fact.head), year


@lru_cache(maxsize=1)
def famous_core() -> Core:
    """The sub-world that every world contains; its facts relate only its own entities."""
    rng = random.Random(_FAME_SEED)
    entities = make_entities(rng, NameGenerator(), _FAME_ENTITIES, "famous-", famous=True)
    generator = FactGenerator(rng, entities, ())
    facts = [fact for entity in entities for fact in generator.facts(entity, FACTS_PER_PAGE)]
    while len(facts) > _FAME_FACTS:
        index = int(rng.random() * len(facts))
        if facts[index].relation != "spouse":
            del facts[index]
    return Core(tuple(entities), tuple(facts), tuple(generator.nary(facts)))
