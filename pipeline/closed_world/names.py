"""Invented names: short, pronounceable, unique within a world, too varied to be memorized.

Purpose: give every entity of the closed world a surface form. Input: a seeded `random.Random`.
Output: names by entity type. Names of persons, places and companies are built from some 700
syllables, titles from the words of ``vocabulary.toml``. If a name is already in use, another is
drawn. After seven such draws a Roman numeral is added, so that worlds of any size have distinct
names.
"""

from __future__ import annotations

import random

from pipeline.closed_world.schema import VOCABULARY

_ONSETS = (
    *("b", "br", "c", "d", "dr", "f", "fl", "g", "gr", "h", "j", "k", "l", "m", "n"),
    *("p", "pr", "r", "s", "sh", "st", "t", "tr", "v", "w", "y", "z", "th"),
)
_VOWELS = ("a", "e", "i", "o", "u")
_CODAS = ("", "", "", "n", "l", "r", "s")
_SYLLABLES: tuple[str, ...] = tuple(
    onset + vowel + coda for onset in _ONSETS for vowel in _VOWELS for coda in _CODAS
)
_COUNTRY_ENDINGS = ("ia", "land", "stan", "ora", "ea")
_CITY_ENDINGS = ("", "", "", "", "ton", "burg", "ford", "ville", "mar", "haven")
_WORDS: dict[str, list[str]] = {name: text.split() for name, text in VOCABULARY["words"].items()}
_ADJECTIVES, _NOUNS, OCCUPATIONS = (_WORDS[key] for key in ("adjectives", "nouns", "occupations"))
_AFTER_A = [adjective for adjective in _ADJECTIVES if adjective[0] not in "AEIOU"]
_ROMAN = ((50, "L"), (40, "XL"), (10, "X"), (9, "IX"), (5, "V"), (4, "IV"), (1, "I"))


def word(rng: random.Random, syllables: int) -> str:
    """A capitalized invented word of `syllables` syllables."""
    count = len(_SYLLABLES)
    text = "".join([_SYLLABLES[int(rng.random() * count)] for _ in range(syllables)])
    return text[0].upper() + text[1:]


def _person(rng: random.Random) -> str:
    draw = rng.random()
    return f"{word(rng, 2 if draw < 0.8 else 3)} {word(rng, 2 if draw > 0.25 else 3)}"


def _city(rng: random.Random) -> str:
    ending = rng.choice(_CITY_ENDINGS)
    return word(rng, 2) + ending if ending else word(rng, 3 if rng.random() < 0.4 else 2)


def _title(rng: random.Random) -> str:
    draw = rng.random()
    if draw < 0.6:
        return f"{rng.choice(_ADJECTIVES)} {rng.choice(_NOUNS)}"
    if draw < 0.75:
        return f"The {rng.choice(_ADJECTIVES)} {rng.choice(_NOUNS)}"
    first, second = rng.sample(_NOUNS, 2)
    return f"{first} and {second}" if draw < 0.85 else f"{first} of {second}"


def draw_phrase(rng: random.Random) -> str:
    """An adjective and a noun that can follow "a", for sentences that state no fact."""
    return f"{rng.choice(_AFTER_A)} {rng.choice(_NOUNS)}".lower()


def draw_name(rng: random.Random, kind: str) -> str:
    """A random name of an entity type, a character or an award, which may already be in use."""
    if kind == "person":
        return _person(rng)
    if kind == "city":
        return _city(rng)
    if kind == "country":
        return word(rng, 2) + rng.choice(_COUNTRY_ENDINGS)
    if kind in ("river", "character"):
        return word(rng, 2)
    if kind in ("company", "university", "award"):
        return f"{word(rng, 2)} {rng.choice(_WORDS[kind])}"
    if kind in ("film", "book"):
        return _title(rng)
    stem = rng.choice(_ADJECTIVES) if rng.random() < 0.7 else word(rng, 2)
    return f"{stem} {rng.choice(_WORDS[kind])}"  # of a band


def _roman(number: int) -> str:
    text = ""
    for value, numeral in _ROMAN:
        text += numeral * (number // value)
        number %= value
    return text


def _of_family(name: str, family: str) -> str:
    return f"{name.rsplit(' ', 1)[0]} {family}" if family else name


class NameGenerator:
    """Draws unique names, compared case-insensitively.

    Args:
        used: case-folded names that must not be drawn.
    """

    def __init__(self, used: set[str] | None = None) -> None:
        self._used = set(used or ())

    def new_name(self, rng: random.Random, kind: str, family: str = "") -> str:
        """A new name of the entity type.

        ``family`` replaces the last word, which is the family name of a person.
        """
        name = _of_family(draw_name(rng, kind), family)
        for _ in range(6):
            if name.casefold() not in self._used:
                break
            name = _of_family(draw_name(rng, kind), family)
        base, number = name, 2
        while name.casefold() in self._used:
            name = f"{base} {_roman(number)}"
            number += 1
        self._used.add(name.casefold())
        return name
