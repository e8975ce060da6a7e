"""Mentions and statements in free text, matched against the closed world.

Purpose: the exact judge reads model output (a conclusion in any wording, a garbled sentence),
whereas `Oracle.verify` needs one clean statement. Input: a world and text. Output: mentions of its
entities and literals, and statements with their truth values. Only names and aliases count as
mentions.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from pipeline.closed_world.oracle import Oracle, fixed_part
from pipeline.closed_world.schema import MONTHS, NARY_RELATIONS, RELATIONS
from pipeline.closed_world.world import World

_WORD = re.compile(r"\w+")
_SENTENCE = re.compile(r"[^.?!;\n]+[.?!;\n]*")
_MONTH = "|".join(MONTHS)
_LITERALS = (
    ("date", re.compile(rf"\b(\d{{1,2}}) ({_MONTH}) (\d{{3,4}})\b", re.IGNORECASE)),
    ("date", re.compile(rf"\b({_MONTH}) (\d{{1,2}}), (\d{{3,4}})\b", re.IGNORECASE)),
    ("number", re.compile(r"\b\d[\d,]* miles\b", re.IGNORECASE)),
    ("year", re.compile(r"\b\d{3,4}\b")),
)
_MAX_CHARACTERS = 4000  # of a text; the rest is ignored
_MAX_MENTIONS = 12  # of one sentence, for combination into statements


@dataclass(frozen=True, slots=True)
class Mention:
    """A name or literal in a text.

    Attributes:
        start: offset of the first character.
        end: offset after the last character.
        surface: the text between the two.
        values: entity ids or literals that the surface can denote.
    """

    start: int
    end: int
    surface: str
    values: frozenset[str]


class Reader:
    """Finds mentions and statements of one world in texts."""

    def __init__(self, world: World) -> None:
        self.oracle = Oracle(world)
        self._world = world
        self._names: dict[tuple[str, ...], set[str]] = {}
        for entity in world.entities.values():
            for surface in (entity.name, *entity.aliases):
                self._add(surface, entity.id)
        for word in _literal_words(world):
            self._add(word, word)
        self._max_words = max(map(len, self._names))

    def _add(self, surface: str, value: str) -> None:
        self._names.setdefault(_words(surface), set()).add(value)

    def mentions(self, text: str, kind: str | None = None) -> list[Mention]:
        """The mentions in a text, in order of occurrence.

        Of overlapping names the longest counts. ``kind`` restricts the mentions to one type of
        entity or literal.
        """
        text = text[:_MAX_CHARACTERS]
        mentions: list[Mention] = []
        tokens = [(word.start(), word.end(), word[0].casefold()) for word in _WORD.finditer(text)]
        literals = _literals(text)
        i = 0
        while i < len(tokens):
            literal = next((m for m in literals if m.start <= tokens[i][0] < m.end), None)
            mention = self._name(text, tokens, i) or literal
            if mention is None:
                i += 1
                continue
            mentions.append(mention)
            i = next((n for n in range(i, len(tokens)) if tokens[n][0] >= mention.end), len(tokens))
        return [mention for mention in mentions if kind is None or self._is(mention, kind)]

    def _name(self, text: str, tokens: Sequence[tuple[int, int, str]], i: int) -> Mention | None:
        """The longest name that starts at token i."""
        for length in range(min(self._max_words, len(tokens) - i), 0, -1):
            values = self._names.get(tuple(word for _, _, word in tokens[i : i + length]))
            if values:
                start, end = tokens[i][0], tokens[i + length - 1][1]
                if text[end : end + 1] == ")" and "(" in text[start:end]:
                    end += 1
                return Mention(start, end, text[start:end], frozenset(values))
        return None

    def _is(self, mention: Mention, kind: str) -> bool:
        entities = self._world.entities
        kinds = {entities[value].type for value in mention.values if value in entities}
        if kind == "work":
            return bool(kinds & {"film", "book"})
        return kind in kinds or (not kinds and _literal_kind(mention.surface) == kind)

    def value(self, query: str, text: str) -> frozenset[str]:
        """The answer that a text gives to a query: entity ids or a literal, or an empty set.

        It is the last mention that has the type of the query's answer and is not in the query.
        """
        in_query = {value for mention in self.mentions(query) for value in mention.values}
        kind = self.oracle.answer_type(query)
        candidates = [mention.values - in_query for mention in self.mentions(text, kind)]
        return next((values for values in reversed(candidates) if values), frozenset())

    def statements(self, text: str) -> list[tuple[str, bool]]:
        """Every readable statement in the text, with its truth value.

        The statements of a sentence combine two of its mentions in a wording of a relation. Without
        any, the longest suffix that `Oracle.verify` can read is used. Questions state nothing.
        """
        verdicts: dict[str, bool] = {}
        for sentence in _sentences(text):
            if not sentence.endswith("?"):
                verdicts.update(self._stated(sentence) or self._suffix(sentence))
        return list(verdicts.items())

    def question(self, text: str) -> tuple[str, str] | None:
        """The last question in the text that the world answers, with its answer, or None."""
        for sentence in reversed(_sentences(text)):
            if sentence.endswith("?"):
                for word in _WORD.finditer(sentence):
                    answer = self.oracle.answer(sentence[word.start() :])
                    if answer is not None:
                        return sentence[word.start() :], answer
        return None

    def _stated(self, sentence: str) -> dict[str, bool]:
        surfaces = [mention.surface for mention in self.mentions(sentence)[:_MAX_MENTIONS]]
        folded = sentence.casefold()
        verdicts = {}
        for statement in _filled_wordings(folded, surfaces):
            verdict = self.oracle.verify(statement)
            if verdict is not None:
                verdicts[statement] = verdict
        return verdicts

    def _suffix(self, sentence: str) -> dict[str, bool]:
        for word in _WORD.finditer(sentence):
            verdict = self.oracle.verify(sentence[word.start() :])
            if verdict is not None:
                return {sentence[word.start() :]: verdict}
        return {}

    def may_state(self, text: str) -> bool:
        """Whether a sentence, other than a question, has at least two different mentions.

        A sentence with fewer states no fact of the world, because every fact relates two things.
        """
        return any(
            len({mention.values for mention in self.mentions(sentence)}) > 1
            for sentence in _sentences(text)
            if not sentence.endswith("?")
        )

    def claims_falsely(self, text: str) -> bool:
        """Whether a sentence assigns an unknown tail to a known entity.

        "The mayor of Lorvik is Tev orb" is false, although "Tev orb" denotes nothing in the world.
        """
        for sentence in _sentences(text):
            if sentence.endswith("?") or self._stated(sentence):
                continue
            folded = sentence.casefold()
            for mention in self.mentions(sentence)[:_MAX_MENTIONS]:
                if any(prefix in folded for prefix in _prefixes(mention.surface.casefold())):
                    return True
        return False


def _sentences(text: str) -> list[str]:
    return [" ".join(one.split()) for one in _SENTENCE.findall(text[:_MAX_CHARACTERS])]


def _words(text: str) -> tuple[str, ...]:
    return tuple(_WORD.findall(text.casefold()))


def _literal_words(world: World) -> Iterator[str]:
    """Literals that are words: professions, characters, awards."""
    for fact in world.facts.values():
        if RELATIONS[fact.relation].tail_type == "word":
            yield fact.tail
    for nary_fact in world.nary.values():
        kinds = dict(NARY_RELATIONS[nary_fact.relation].roles)
        yield from (value for role, value in nary_fact.arguments if kinds[role] == "word")


def _literals(text: str) -> list[Mention]:
    """Dates, numbers and years in the world's spelling; the year of a date is not separate."""
    mentions: list[Mention] = []
    for kind, pattern in _LITERALS:
        for match in pattern.finditer(text):
            start, end = match.span()
            if any(mention.start < end and start < mention.end for mention in mentions):
                continue
            mentions.append(Mention(start, end, match[0], frozenset({_normalized(kind, match)})))
    return mentions


def _normalized(kind: str, match: re.Match[str]) -> str:
    if kind == "number":
        return match.group().replace(",", "").lower()
    if kind == "year":
        return match.group()
    first, second, year = match.groups()
    day, month = (first, second) if first.isdigit() else (second, first)
    return f"{day} {month.capitalize()} {year}"


def _literal_kind(surface: str) -> str:
    return next((kind for kind, pattern in _LITERALS if pattern.fullmatch(surface)), "word")


# (fixed part, wording) of every wording
_KEYED_WORDINGS = tuple(
    (fixed_part(wording.rstrip(".")), wording.rstrip("."))
    for relation in RELATIONS.values()
    for wording in relation.readable
)


def _filled_wordings(folded: str, surfaces: Sequence[str]) -> Iterator[str]:
    """Wordings filled with two surfaces that occur, as whole words, in the folded sentence."""
    for key, wording in _KEYED_WORDINGS:
        if key not in folded:
            continue
        for head in surfaces:
            for tail in surfaces:
                if head != tail:
                    statement = wording.format(head=head, tail=tail)
                    if re.search(rf"\b{re.escape(statement.casefold())}(?!\w)", folded):
                        yield statement


def _prefixes(surface: str) -> Iterator[str]:
    """The wordings that end with the tail, with `surface` as their head and without the tail."""
    for _, wording in _KEYED_WORDINGS:
        if wording.endswith("{tail}"):
            yield wording[: -len("{tail}")].casefold().format(head=surface)
