"""Whole-word matching of names in text, with the normalization of the answer metrics.

Input: texts of a trajectory. Output: whether a text contains a name. Each text is normalized twice:
once as the answer metrics do, with punctuation deleted ("U.S." becomes "us"), and once with every
punctuation mark replaced by a space ("Vell's" becomes "vell s"). A name matches if it occurs in
either form; deletion alone would miss every name before an apostrophe or a dash. Matches are whole
words, so "10" does not occur in "2010".
"""

from __future__ import annotations

import re
import unicodedata
from functools import lru_cache

from pipeline.core.answer_metrics import normalize
from pipeline.core.text import QUALIFIER, WORD

_MARKS = re.compile(r"[\W_]+")


class SearchableText:
    """Pieces of text in which names are searched; a match never spans two pieces."""

    __slots__ = ("_deleted", "_spaced")

    def __init__(self, *pieces: str) -> None:
        forms = [_normalized_forms(piece) for piece in pieces]
        self._deleted, self._spaced = (
            " " + " \0 ".join(form[number] for form in forms) + " " for number in (0, 1)
        )

    def contains(self, name: str) -> bool:
        """Whether ``name`` occurs as consecutive whole words; False for an empty name."""
        deleted, spaced = _forms_of_name(name)
        return (
            bool(deleted)
            and (_contains_words(self._deleted, deleted) or _contains_words(self._spaced, deleted))
        ) or (bool(spaced) and _contains_words(self._spaced, spaced))

    def contains_any(self, names: tuple[str, ...]) -> bool:
        """Whether any of ``names`` occurs."""
        return any(self.contains(name) for name in names)


def strip_qualifier(title: str) -> str:
    """A title without its trailing parenthesis: "Frozen (2013 film)" becomes "Frozen"."""
    return QUALIFIER.sub("", title).strip() or title.strip()


def distinctive_words(statement: str, title: str) -> tuple[str, ...]:
    """Names and numbers of a statement that its title does not contain, without repetitions.

    These are words with a capital letter or a digit. The first word needs a digit, because its
    capital letter may only mark the start of the sentence.
    """
    title_text = SearchableText(title)
    words = [
        word
        for position, word in enumerate(WORD.findall(statement))
        if any(c.isdigit() for c in word) or (position and word[0].isupper())
    ]
    return tuple(dict.fromkeys(word for word in words if not title_text.contains(word)))


def _contains_words(text: str, name: str) -> bool:
    return f" {name} " in text


def _normalized_forms(text: str) -> tuple[str, str]:
    return normalize(text), normalize(
        _MARKS.sub(" ", unicodedata.normalize("NFC", text))
    )  # marks may be accents


_forms_of_name = lru_cache(maxsize=8192)(_normalized_forms)  # names recur, texts do not
