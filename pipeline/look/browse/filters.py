"""Filters of the lists: the parameters of an address as SQL conditions.

Input: the query parameters of a page, such as ``kind=hard&q=river``. Output: a condition with its
values for each table. Names of columns come from fixed lists or from the table itself, and values
are always bound, so that no parameter becomes SQL.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlencode

from pipeline.core.errors import InputError

PAGE_SIZE = 50
_LAYOUT = ("sort", "order", "page")  # parameters that filter nothing
_YES_OR_NO = {"correct": "correct", "format": "format_ok"}
_VERDICTS = {"over": "over > 0", "under": "under > 0", "faultless": "over = 0 AND under = 0"}


@dataclass(frozen=True)
class Filters:
    """The parameters of a list page, checked; ``where`` and ``values`` are the SQL condition."""

    parameters: Mapping[str, str]
    where: str
    values: tuple[Any, ...]

    def address(self, **changes: object) -> str:
        """``?name=value&…`` with changes; None removes a parameter, and a list starts at page 1."""
        merged: dict[str, object] = {**self.parameters, "page": None, **changes}
        return "?" + urlencode({name: v for name, v in merged.items() if v not in (None, "")})

    def get(self, name: str, default: str = "") -> str:
        """The value of a parameter, or ``default``."""
        return self.parameters.get(name, default)


@dataclass(frozen=True)
class Table:
    """The filters of a table: columns with few values, ranges, and its numbers."""

    name: str
    facets: tuple[str, ...]  # columns with few values
    ranges: Mapping[str, str]
    ids: tuple[str, ...]  # columns of trajectory numbers, for words and items
    order: str  # of the file
    sorts: tuple[str, ...]  # columns that a list can be sorted by, besides reward terms


TRAJECTORIES = Table(
    "trajectories",
    ("group", "dataset", "hop", "hops", "type", "failure", "bin", "stop"),
    {"steps": "steps", "tokens": "coalesce(tokens, characters)"},
    ("n",),
    order="n",
    sorts=("steps", "searches", "tokens", "characters", "over", "under"),
)
PAIRS = Table(
    "pairs",
    ("group", "dataset", "hop", "hops", "kind", "failure"),
    {"steps": "steps_chosen", "tokens": "tokens_chosen + tokens_rejected"},
    ("n_chosen", "n_rejected"),
    order='"group", "row"',
    sorts=("tokens_chosen", "tokens_rejected", "steps_chosen", "steps_rejected"),
)


def parse(
    table: Table,
    parameters: Mapping[str, str],
    terms: Collection[str],
    words_of: Callable[[str], Sequence[str]],
) -> Filters:
    """The filters of an address.

    ``terms`` are the columns of reward terms that the table has; ``words_of`` gives the words of a
    search. Raises InputError for an unknown parameter or an impossible value.
    """
    given = {name: value.strip() for name, value in parameters.items() if value.strip()}
    term = given.get("term")
    if term is not None and term not in terms:
        raise InputError(f"term is {term!r:.60}; expected one of {', '.join(terms)}")
    parts, values = ["TRUE"], []
    for name, value in given.items():
        for part, *bound in _conditions(table, name, value, term, words_of):
            parts.append(part)
            values += bound
    return Filters(given, " AND ".join(parts), tuple(values))


_ENDS = {"from": ">=", "to": "<="}  # both ends belong to a range
_OTHERS = ("q", "item", "correct", "format", "verdict", "term", *_ENDS)


def _conditions(
    table: Table, name: str, value: str, term: str | None, words_of: Callable[[str], Sequence[str]]
) -> Iterator[tuple[Any, ...]]:
    """The conditions of a parameter, each with the values that it binds."""
    ranged, _, end = name.rpartition("_")
    if name in (*table.facets, "question"):
        column = "question_id" if name == "question" else name
        yield f'"{column}"::VARCHAR = ?', value
    elif ranged in table.ranges and end in _ENDS:
        yield f"{table.ranges[ranged]} {_ENDS[end]} ?", _number(name, value)
    elif name in _ENDS:
        if term is None:
            raise InputError(f"{name} has no term; add the name of a reward term, such as total")
        yield f'"{term}" {_ENDS[name]} ?', _number(name, value)
    elif name == "q":
        words = words_of(value)
        if not words:
            raise InputError(f"q is {value!r:.60}; expected words of letters or digits")
        for word in words:
            yield _among(table, "SELECT n FROM words WHERE starts_with(word, ?)", word)
    elif name == "item":
        yield _among(table, "SELECT n FROM items WHERE item = ?", value)
    elif name == "verdict":
        if value not in _VERDICTS:
            raise InputError(f"verdict is {value!r:.60}; expected {', '.join(_VERDICTS)}")
        yield (_VERDICTS[value],)
    elif name in _YES_OR_NO:
        if table is not TRAJECTORIES or value not in ("yes", "no"):
            raise InputError(f"{name} is {value!r:.60}; expected yes or no, for trajectories")
        yield (("" if value == "yes" else "NOT ") + _YES_OR_NO[name],)
    elif name == "page":
        page_number(value)
    elif name == "order" and value not in ("asc", "desc"):
        raise InputError(f"order is {value!r:.60}; expected asc or desc")
    elif name not in ("term", *_LAYOUT):
        ranges = [f"{column}_{end}" for column in table.ranges for end in _ENDS]
        known = ", ".join([*table.facets, "question", *ranges, *_OTHERS, *_LAYOUT])
        raise InputError(f"unknown filter {name!r:.60}; expected one of {known}")


def _among(table: Table, chosen: str, value: str) -> tuple[str, ...]:
    """The condition that a statement with one value selects one of the row's trajectories."""
    among = " OR ".join(f"{column} IN ({chosen})" for column in table.ids)
    return f"({among})", *[value] * len(table.ids)


def _number(name: str, value: str) -> float:
    try:
        number = float(value)
    except ValueError:
        number = float("nan")
    if number != number:
        raise InputError(f"{name} is {value!r:.60}; expected a number")
    return number


def page_number(value: str) -> int:
    """The number of a page of a list. Raises InputError for other texts."""
    if not (value.isascii() and value.isdecimal() and len(value) < 9 and int(value) >= 1):
        raise InputError(f"page is {value!r:.60}; expected a number from 1")
    return int(value)
