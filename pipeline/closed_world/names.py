"""Invented names: short, pronounceable, unique within a world, too varied to be memorized.

Purpose: give every entity of the closed world a surface form. Input: a seeded `random.Random`.
Output: names by entity type. Names of persons, places and companies are built from some 700
syllables, titles from word lists. If a name is already in use, another is drawn. After seven such
draws a Roman numeral is added, so that worlds of any size have distinct names.
"""

from __future__ import annotations

import random


def _words(text: str) -> tuple[str, ...]:
    return tuple(text.split())


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
_COMPANY_WORDS = _words(
    "Works Foods Motors Group Steel Media Air Glass Mills Bank Press Tools Pictures Records "
    "Textiles Lines Power Optics Paper Farms Labs Toys Shipping Trust"
)
_UNIVERSITY_WORDS = ("University", "College", "Institute", "Academy", "School")
_ADJECTIVES = _words(
    "Silver Golden Quiet Broken Hidden Distant Bright Hollow Frozen Burning Crimson Scarlet Amber "
    "Ivory Velvet Copper Iron Paper Glass Stone Wooden Silent Secret Sacred Wild Gentle Bitter "
    "Sweet Early Final Lost Last First Second Third Ninth Empty Endless Narrow Open Crooked "
    "Painted Falling Rising Sleeping Dancing Running Wandering Drifting Fading Shining Whispering "
    "Laughing Restless Patient Humble Proud Royal Noble Savage Savory Tender Bold Brave Clever "
    "Cruel Curious Daring Dusty Eager Faithful Famous Fierce Foreign Forgotten Fragile Grand Gray "
    "Green Blue Black White Purple Heavy Holy Honest Icy Jolly Kind Little Lonely Lucky Lunar Mad "
    "Magic Mellow Midnight Misty Modern Mortal Naked Northern Southern Eastern Western Odd Old "
    "Pale Perfect Plain Polished Private Pure Quick Rare Ready Remote Rough Rural Rusty Salty "
    "Scattered Seventh Shallow Sharp Simple Single Slender Slow Small Smoky Snowy Solar Solemn "
    "Stolen Stormy Strange Sudden Summer Sunny Swift Tall Tame Tangled Thirsty Tiny Tired True "
    "Twin Upper Urban Vacant Vast Violet Vivid Warm Weary Windy Winter Wise Yellow Young Electric "
    "Atomic Cosmic Desert Double Floating Flying Harvest Morning Evening"
)
_AFTER_A = tuple(adjective for adjective in _ADJECTIVES if adjective[0] not in "AEIOU")
_NOUNS = _words(
    "Lantern Harbor Garden River Mountain Window Mirror Letter Bridge Castle Tower Forest Island "
    "Valley Meadow Orchard Station Market Temple Palace Cottage Kitchen Cellar Attic Staircase "
    "Candle Clock Compass Anchor Needle Feather Ribbon Button Pocket Saddle Hammer Arrow Shield "
    "Sword Crown Throne Banner Drum Violin Trumpet Piano Melody Song Story Legend Promise Secret "
    "Shadow Echo Whisper Dream Journey Voyage Road Path Corner Border Shore Beach Wave Tide Storm "
    "Thunder Rain Snow Frost Flame Ember Ash Smoke Cloud Star Moon Sun Planet Comet Horizon Dawn "
    "Dusk Night Morning Evening Winter Summer Autumn Spring Season Harvest Seed Root Branch Leaf "
    "Flower Rose Lily Thorn Apple Cherry Lemon Olive Honey Salt Sugar Bread Wine Silver Gold "
    "Pearl Diamond Ruby Marble Clay Sand Dust Stone Wolf Fox Bear Lion Tiger Horse Deer Rabbit "
    "Eagle Falcon Raven Sparrow Swan Crane Owl Dolphin Whale Turtle Spider Butterfly Beetle King "
    "Queen Prince Soldier Sailor Doctor Teacher Painter Dancer Singer Hunter Farmer Baker Tailor "
    "Weaver Potter Shepherd Stranger Neighbor Brother Sister Mother Father Daughter Child Widow "
    "Angel Ghost Giant Dragon Machine Engine Wheel Rocket Train Ship Ferry Wagon Signal Code "
    "Puzzle Riddle Game Dance Wedding Funeral Festival Holiday Summit Canyon Glacier Lagoon Marsh "
    "Prairie Reef Cavern Tunnel Ladder Fountain Statue Portrait Diary Novel Chapter Alphabet "
    "Number Circle Square Triangle Kingdom Empire Republic Colony Village Avenue Theater Museum "
    "Library Hotel Prison Hospital Factory Lighthouse Windmill Carousel Balcony Curtain Carpet "
    "Blanket Pillow Basket Bottle Kettle Spoon Jacket Glove Boot Hat Ring Chain Key Lock"
)
_BAND_NOUNS = _words(
    "Foxes Wolves Lanterns Arrows Pilots Strangers Brothers Sisters Kings Queens Ghosts Giants "
    "Engines Rockets Mirrors Shadows Echoes Sparrows Ravens Tigers Dolphins Riders Hunters "
    "Painters Dancers Sailors Poets Monkeys Parrots Candles Needles Diamonds Rubies Roses Thorns "
    "Flames Embers Clouds Comets Planets Rivers Canyons Islands Tunnels Towers Circles Numbers "
    "Letters Machines Wheels Trains Signals Puzzles Hammers Trumpets Drums Boots Gloves Hats"
)
OCCUPATIONS: tuple[str, ...] = _words(
    "painter poet singer dancer lawyer doctor nurse farmer baker soldier sailor pilot teacher "
    "judge banker chemist physicist botanist geologist journalist novelist composer violinist "
    "pianist sculptor photographer tailor carpenter mason blacksmith jeweller chef gardener "
    "priest diplomat detective wrestler boxer swimmer cyclist gymnast magician clown puppeteer "
    "librarian historian linguist surgeon dentist pharmacist mechanic miner fisherman "
    "shepherd weaver potter printer translator critic broker merchant broadcaster"
)
_AWARD_WORDS = ("Prize", "Medal", "Award", "Cup", "Trophy")
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
    """A random name of an entity type, which may already be in use.

    Raises:
        ValueError: the type is none of `schema.ENTITY_TYPES`, "character" or "award".
    """
    if kind == "person":
        return _person(rng)
    if kind == "city":
        return _city(rng)
    if kind == "country":
        return word(rng, 2) + rng.choice(_COUNTRY_ENDINGS)
    if kind == "river":
        return word(rng, 2)
    if kind == "company":
        return f"{word(rng, 2)} {rng.choice(_COMPANY_WORDS)}"
    if kind == "university":
        return f"{word(rng, 2)} {rng.choice(_UNIVERSITY_WORDS)}"
    if kind in ("film", "book"):
        return _title(rng)
    if kind == "band":
        stem = rng.choice(_ADJECTIVES) if rng.random() < 0.7 else word(rng, 2)
        return f"{stem} {rng.choice(_BAND_NOUNS)}"
    if kind == "character":
        return word(rng, 2)
    if kind == "award":
        return f"{word(rng, 2)} {rng.choice(_AWARD_WORDS)}"
    raise ValueError(f"entity type is {kind!r}; expected an entity type, character or award")


def _roman(number: int) -> str:
    text = ""
    for value, numeral in _ROMAN:
        text += numeral * (number // value)
        number %= value
    return text


class NameGenerator:
    """Draws unique names, compared case-insensitively.

    Args:
        used: case-folded names that must not be drawn.
    """

    def __init__(self, used: set[str] | None = None) -> None:
        self._used = set(used or ())

    def new_name(self, rng: random.Random, kind: str) -> str:
        """A new name of the entity type; raises ValueError for an unknown type."""
        name = draw_name(rng, kind)
        for _ in range(6):
            if name.casefold() not in self._used:
                break
            name = draw_name(rng, kind)
        base, number = name, 2
        while name.casefold() in self._used:
            name = f"{base} {_roman(number)}"
            number += 1
        self._used.add(name.casefold())
        return name
