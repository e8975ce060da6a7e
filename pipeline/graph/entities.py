"""When two surface forms are one entity (TeaRAG 4.1).

Purpose: nodes of the graph. Input: heads and tails as they were extracted. Output: a key that is
equal exactly for forms of one entity, and a table that numbers entities and shows the first form
seen. Identity: Unicode NFKC, case-folded, white space collapsed, surrounding quotes stripped.
"""

from __future__ import annotations

import unicodedata
from functools import lru_cache

# Opening quote -> closing quote. NFKC has been applied before, so full-width forms are ASCII.
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
    """A surface form on one line: white space collapsed, nothing else changed."""
    return " ".join(surface.split())


@lru_cache(maxsize=1 << 16)
def entity_key(surface: str) -> str:
    """The identity of an entity; empty when nothing is left of the surface form.

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
    """Numbers entities from 0 in order of appearance; remembers the first form of each."""

    def __init__(self) -> None:
        self.keys: list[str] = []
        self.names: list[str] = []
        self._ids: dict[str, int] = {}

    def add(self, surface: str) -> int:
        """The number of the entity that this form names; new entities get the next one."""
        key = entity_key(surface)
        number = self._ids.setdefault(key, len(self.keys))
        if number == len(self.keys):
            self.keys.append(key)
            self.names.append(display(surface))
        return number

    def __len__(self) -> int:
        return len(self.keys)


def _unquote(text: str) -> str:
    """Without the pair of quotes around it, unless a quote inside shows that they are no pair."""
    if len(text) < 2:
        return "" if text in _QUOTES else text
    inside = text[1:-1]
    if text.startswith("``") and text.endswith("''") and len(text) > 4:
        return text[2:-2].strip()
    pair = _QUOTES.get(text[0]) == text[-1]
    return inside.strip() if pair and text[0] not in inside and text[-1] not in inside else text
