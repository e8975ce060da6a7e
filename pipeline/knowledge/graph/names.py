"""Find mentions of known names in texts: a dictionary lookup over whole words, without a model.

Used for titles in passages (`graph.sources.link_titles`), key entities in a subquery
(`retrieval.expansion`) and entities of a query (`retrieval.hypergraph`). Input: names, then texts.
Output: mentions with character offsets. Rules:

- Words are compared without case and accents (`core.text.fold`).
- The longest match at a word wins, and mentions do not overlap.
- A mention begins with a capital or a digit.
- A name is also found without its disambiguation when two or more words remain: "Malibu Express
  (film)" as "Malibu Express", but not "Boston (band)" as "Boston", because most mentions of such a
  single word mean something else.
- A single word beside another capitalized word is part of a longer name and not a mention ("United"
  in "United States"). The first word of the text does not count as capitalized.
- In a text without capitals (NQ's questions), only names of two or more words are found. The same
  holds for scripts without spaces, where a character counts as a word. In other scripts without
  capitals, as Arabic, single words of three or more letters are names too.

Memory: one tuple per name.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from pipeline.core.text import QUALIFIER, SPACELESS, UNIT, fold

MAX_NAMES = 3  # a form that more names share is too ambiguous to be a mention of any


@dataclass(frozen=True, slots=True)
class Mention:
    """``text[start:end]`` mentions one of ``names``; several names can share a form."""

    start: int
    end: int
    names: tuple[str, ...]


class NameIndex:
    """Finds known names in one pass over the words of a text."""

    def __init__(self, names: Iterable[str]) -> None:
        """Index ``names``; mentions report them in this spelling. Repeated names count once."""
        self._names: dict[tuple[str, ...], list[str]] = {}
        self._longest: dict[str, int] = {}
        for name in dict.fromkeys(names):
            for form in dict.fromkeys((name, QUALIFIER.sub("", name))):
                words = tuple(fold(word) for word in UNIT.findall(form))
                if len(words) > 1 or (words and form == name):
                    self._names.setdefault(words, []).append(name)
                    self._longest[words[0]] = max(self._longest.get(words[0], 0), len(words))

    def find(self, text: str) -> Iterator[Mention]:
        """Mentions in the order of the text."""
        matches = list(UNIT.finditer(text))
        words = [fold(match.group()) for match in matches]
        has_capitals = any(char.isupper() for char in text[1:])
        position = 0
        while position < len(words):
            longest, left = self._longest.get(words[position], 0), len(words) - position
            for length in range(min(longest, left), 0, -1):
                names = self._names.get(tuple(words[position : position + length]), ())
                last = position + length - 1
                # The end of the text counts as a longer name if its first word begins one.
                counted = longest if length == left else length
                single = counted == 1
                first = matches[position].group()
                if (
                    0 < len(names) <= MAX_NAMES
                    and _may_be_name(first, single, has_capitals)
                    and not (single and _beside_capital(text, matches, position))
                ):
                    yield Mention(matches[position].start(), matches[last].end(), tuple(names))
                    position = last
                    break
            position += 1


def _may_be_name(word: str, single: bool, has_capitals: bool) -> bool:
    """Whether a name may begin with ``word``; ``single``: and consist of it alone."""
    if word[0].lower() == word[0].upper() and not word[0].isdigit():  # a script without capitals
        return not single or (len(word) > 2 and not SPACELESS.match(word))
    return word[0].isupper() or word[0].isdigit() if has_capitals else not single


def _beside_capital(text: str, matches: Sequence[re.Match[str]], number: int) -> bool:
    """Whether a capitalized word is one space or hyphen away from word ``number`` of a text.

    Every sentence begins with a capital, so the first word of the text does not count.
    """
    start, end = matches[number].span()
    if number and text[start - 1] in " -" and matches[number - 1].end() == start - 1:
        before = matches[number - 1]
        if before.start() > 0 and before.group()[0].isupper():
            return True
    if number + 1 < len(matches) and text[end] in " -":
        after = matches[number + 1]
        return after.start() == end + 1 and after.group()[0].isupper()
    return False
