"""Offsets at which a text mentions a name, regardless of case, accents, punctuation and spacing.

Purpose: the comparisons behind supporting triplets and key entities. Input: two texts. Output: the
character offsets of the mention. Only whole words match, where a word is a run of letters and
digits: "10" does not match in "2010", nor "Rome" in "Romeo". Accents are ignored because questions
often omit them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from itertools import takewhile

from pipeline.core.text import WORD, fold

Finder = Callable[[str, str], tuple[int, int] | None]

# Words that precede a name in an answer without being part of it ("in London", "under Trajan").
_LEADING = frozenset((
    "a", "an", "the", "in", "at", "on", "of", "by", "from", "to", "under", "for", "with",
    "during", "since",
))  # fmt: skip


def words(text: str) -> list[str]:
    """The words of a text, case-folded and without accents."""
    return [fold(match.group()) for match in WORD.finditer(text)]


def content_words(text: str) -> list[str]:
    """The folded words of an answer or name, without leading articles and prepositions."""
    folded = words(text)
    start = next((n for n, word in enumerate(folded) if word not in _LEADING), len(folded))
    return folded[start:]


def mention(text: str, name: str) -> tuple[int, int] | None:
    """[start, end) of the first mention of ``name`` in ``text``; None when there is none."""
    name_words = content_words(name)
    if not name_words:
        return None
    matches = list(WORD.finditer(text))
    folded = [fold(match.group()) for match in matches]
    for start in range(len(folded) - len(name_words) + 1):
        if folded[start : start + len(name_words)] == name_words:
            return matches[start].start(), matches[start + len(name_words) - 1].end()
    return None


def shared_name(text: str, name: str) -> tuple[int, int] | None:
    """[start, end) of the longest run of words in ``text`` that also occurs in ``name``.

    Finds "Hayek" for "Friedrich Hayek". In the text the run must begin with a capital letter or a
    digit. Of equally long runs the first is returned; None when there is none.
    """
    matches = list(WORD.finditer(text))
    folded = [fold(match.group()) for match in matches]
    name_words = content_words(name)
    best = (0, 0, 0)
    for start, match in enumerate(matches):
        if not (match.group()[0].isupper() or match.group()[0].isdigit()):
            continue
        for name_start in range(len(name_words)):
            pairs = zip(folded[start:], name_words[name_start:], strict=False)
            length = sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], pairs))
            if length > best[0]:
                best = (length, match.start(), matches[start + length - 1].end())
    return best[1:] if best[0] else None


def longest_mentions(text: str, names: Iterable[str], find: Finder = mention) -> list[str]:
    """The names that a text mentions, in the text's spelling and order.

    Of overlapping mentions ("York", "New York") only the longest is returned. ``find`` is `mention`
    or `shared_name`.
    """
    spans = {span for name in names if (span := find(text, name)) is not None}
    kept: list[tuple[int, int]] = []
    for start, end in sorted(spans, key=lambda span: (span[0] - span[1], span)):
        if all(end <= kept_start or start >= kept_end for kept_start, kept_end in kept):
            kept.append((start, end))
    return [text[start:end] for start, end in sorted(kept)]
