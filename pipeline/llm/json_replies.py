"""Read the JSON in a language model's reply: a list of items, or one object.

Input: the text of a reply. Output: the items that are complete, in order, and `Dropped` pieces with
the reason. Prose, Markdown fences and a thinking block around the JSON are accepted, and so are raw
line breaks in strings, commas before a closing bracket, and items that stand on lines of their own
without a list. Nothing is completed or corrected: an item that was cut off, or is no JSON for
another reason, is dropped, and the items after it are read.
"""

from __future__ import annotations

import json
import re
from collections.abc import Generator, Iterator
from dataclasses import dataclass
from typing import Any, NoReturn

# "[[", "[{" or "[]": brackets in prose ("as [requested]") do not match.
_LIST = re.compile(r"(?=\[\s*[\[\]{])")
_FILLED = re.compile(r"(?=\[\s*[\[{]\s*\")")
_FIRST = re.compile(r"\A\s*(?:```\w*\s*)?(?=\[\s*\")")  # items without a list, and without prose
_OBJECT = re.compile(r"\{\s*\"")
# An item on a line of its own, with or without the sign of a list.
_LINE = re.compile(r"^[ \t]*(?:[-*•]\s+|\d+[.)]\s+)?(?=[\[{]\s*\")", re.MULTILINE)
_BETWEEN = re.compile(r"(?:[\s,]|(?:[-*•]|\d+[.)])\s+(?=[\[{]))*")
# Where an item may end: a closing bracket before another bracket, or a line that begins with one.
# A run of white space is read once, from its first character.
_NEXT = re.compile(r"[\]}]\s*+(?:,\s*+)?(?=[\[{\]])|(?<!\s)[^\S\n]*+\n\s*+(?=[\[{])")
# A string, which may be cut off, or a comma before a closing bracket.
_COMMA = re.compile(r'("(?:[^"\\]|\\.)*+(?:"|\\?\Z))|,(?=\s*[\]}])', re.DOTALL)
_MAX_DROPPED = 100  # of a reply, because the search for the next item may take the whole text


@dataclass(frozen=True, slots=True)
class Dropped:
    """A piece of a reply that is no item, and the reason."""

    text: str
    reason: str


def read_items(text: str) -> Iterator[Any]:
    """The items of the list in a reply, and `Dropped` for each piece that is none.

    The first list counts, and lists that follow it without words between them; a further one is
    dropped. An empty list has no items.
    """
    thoughts, text = text, _said(text)
    if not text and thoughts:
        yield Dropped(thoughts, "answer is all thoughts")
        return
    searches = (form.search(text) for form in (_FIRST, _FILLED, _LIST, _LINE))
    start = next((found for found in searches if found), None)
    if start is None:
        yield Dropped(text, "answer has no list of lists")
        return
    text = _without_last_commas(text[start.end() :])
    end = yield from _items(text)
    if _FILLED.search(text, end):
        yield Dropped(text[end:], "answer has more than one list")


def _said(text: str) -> str:
    """What follows the thinking block; nothing where the block has no end."""
    rest = text.rpartition("</think>")[2]
    return "" if rest.lstrip().startswith("<think>") else rest


def _items(text: str) -> Generator[Any, None, int]:
    """`read_items` of a text that begins with the list; returns where the list ends."""
    position, inside, dropped = 0, False, 0
    while True:
        position = _BETWEEN.match(text, position).end()  # type: ignore[union-attr]
        if position == len(text):
            if inside:
                yield Dropped("", "the list has no end")
            return position
        if inside and text[position] == "]":
            position, inside = position + 1, False
            continue
        if not inside and _LIST.match(text, position):
            position, inside = position + 1, True
            continue
        if not inside and text[position] not in "[{":
            return position
        try:
            value, position = _DECODER.raw_decode(text, position)
        except (ValueError, RecursionError) as error:
            dropped += 1
            following = None
            if dropped < _MAX_DROPPED and not _is_last(error, text):
                following = _NEXT.search(text, position + 1)
            end = len(text) if following is None else following.end()
            deep = isinstance(error, RecursionError)
            reason = "answer is nested too deeply" if deep else "not valid JSON"
            yield Dropped(text[position:end], reason)
            if following is None:
                return end
            position = end
        else:
            yield value


def _is_last(error: Exception, text: str) -> bool:
    """Whether no string is complete after an error, so that no item of texts follows it."""
    if isinstance(error, json.JSONDecodeError):
        return error.msg.startswith("Unterminated") or '"' not in text[error.pos :]
    return isinstance(error, RecursionError)


def read_object(text: str) -> dict[str, Any] | None:
    """The first JSON object of a reply; None without one, or when it is incomplete."""
    text = _said(text)
    found = _OBJECT.search(text)
    if found is None:
        return None
    try:
        value: dict[str, Any] = _DECODER.raw_decode(_without_last_commas(text[found.start() :]))[0]
    except (ValueError, RecursionError):
        return None
    return value


def _without_last_commas(text: str) -> str:
    return _COMMA.sub(lambda found: found[1] or " ", text)


def _no_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is no JSON")


_DECODER = json.JSONDecoder(parse_constant=_no_constant, strict=False)  # NaN, Infinity
