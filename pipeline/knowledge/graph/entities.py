"""Identity of entities: the nodes of the graph (TeaRAG 4.1).

Input: names of entities as they were extracted. Output: a key that is equal for all forms of an
entity, and a table that numbers entities and keeps the first form of each. The key is the name
after Unicode NFKC and case folding, with white space collapsed and surrounding quotes removed.
"""

from __future__ import annotations

import unicodedata
from functools import lru_cache

# Opening quote -> closing quote, after NFKC, which maps full-width quotes to ASCII.
_QUOTES = {
    '"': '"',
    "'": "'",
    "`": "'",
    "“": "”",
    "„": "“",
    "‘": "’",
    "‚": "‘",
    "«": "»",
    "‹": "›",
    "”": "”",
    "’": "’",
}


def display(surface: str) -> str:
    """The name with white space collapsed and nothing else changed."""
    return " ".join(surface.split())


@lru_cache(maxsize=1 << 16)
def entity_key(surface: str) -> str:
    """The key that identifies an entity; empty for a name of white space and quotes only.

    Idempotent: ``entity_key(entity_key(s)) == entity_key(s)``.
    """
    text = surface
    while True:
        folded = unicodedata.normalize("NFKC", unicodedata.normalize("NFKC", text).casefold())
        stripped = _unquote(display(folded))
        if stripped == text:
            return text
        text = stripped


class EntityTable:
    """Entities numbered from 0 in order of appearance.

    ``keys[n]`` is the key of entity n, ``names[n]`` the first form in which it appeared.
    """

    def __init__(self) -> None:
        self.keys: list[str] = []
        self.names: list[str] = []
        self._ids: dict[str, int] = {}

    def add(self, surface: str) -> int:
        """The number of the entity with this name; a new entity gets the next number."""
        key = entity_key(surface)
        number = self._ids.setdefault(key, len(self.keys))
        if number == len(self.keys):
            self.keys.append(key)
            self.names.append(display(surface))
        return number

    def __len__(self) -> int:
        return len(self.keys)


def _unquote(text: str) -> str:
    """The text without surrounding quotes; unchanged if the text inside holds one of the quotes."""
    if len(text) < 2:
        return "" if text in _QUOTES else text
    inside = text[1:-1]
    if text.startswith("``") and text.endswith("''") and len(text) > 4:
        return text[2:-2].strip()
    pair = _QUOTES.get(text[0]) == text[-1]
    return inside.strip() if pair and text[0] not in inside and text[-1] not in inside else text
