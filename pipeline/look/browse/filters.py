"""Filters of the lists: the parameters of an address as SQL conditions.

Input: the query parameters of a page, such as ``kind=hard&q=river``. Output: a condition with its
values for each table. Names of columns come from fixed lists or from the table itself, and values
are always bound, so that no parameter becomes SQL.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import urlencode

from pipeline.core.errors import InputError

PAGE_SIZE = 50
_LAYOUT = ("sort", "order", "page")  # parameters that filter nothing
_VERDICTS = {
    "over": "{over} > 0",
    "under": "{under} > 0",
    "faultless": "{over} = 0 AND {under} = 0",
}


@dataclass(frozen=True)
class Filters:
    """The parameters of a list page, checked; ``where`` and ``values`` are the SQL condition."""

    parameters: Mapping[str, str]
    where: str
    values: tuple[Any, ...]

    def address(self, **changes: object) -> str:
        """The query string with changed parameters, as `query_string`."""
        return query_string(self.parameters, changes)

    def get(self, name: str, default: str = "") -> str:
        """The value of a parameter, or ``default``."""
        return self.parameters.get(name, default)


def query_string(parameters: Mapping[str, str], changes: Mapping[str, object]) -> str:
    """``?name=value&…`` with changed parameters; None removes one, and a list starts at page 1."""
    merged: dict[str, object] = {**parameters, "page": None, **changes}
    return "?" + urlencode({name: v for name, v in merged.items() if v not in (None, "")})


@dataclass
class _Conditions:
    parts: list[str] = field(default_factory=list)
    values: list[Any] = field(default_factory=list)

    def add(self, part: str, *values: Any) -> None:
        self.parts.append(part)
        self.values.extend(values)


@dataclass(frozen=True)
class Table:
    """The filters of a table: parameters with equal values, with ranges, and its numbers."""

    name: str
    equal: Mapping[str, str]
    ranges: Mapping[str, str]
    ids: tuple[str, ...]  # columns of trajectory numbers, for words and items
    over: str
    under: str


TRAJECTORIES = Table(
    "trajectories",
    {
        "group": '"group"', "dataset": "dataset", "hop": "hop", "hops": "hops", "type": "type",
        "failure": "failure", "bin": "bin", "stop": "stop", "question": "question_id",
    },
    {"steps": "steps", "tokens": "coalesce(tokens, characters)"},
    ("n",),
    over="over",
    under="under",
)  # fmt: skip
PAIRS = Table(
    "pairs",
    {
        "group": '"group"', "dataset": "dataset", "hop": "hop", "hops": "hops", "kind": "kind",
        "failure": "failure", "question": "question_id",
    },
    {"steps": "steps_chosen", "tokens": "tokens_chosen + tokens_rejected"},
    ("n_chosen", "n_rejected"),
    over="greatest(over_chosen, over_rejected)",  # null only where neither side was judged
    under="greatest(under_chosen, under_rejected)",
)  # fmt: skip


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
    conditions = _Conditions()
    for name, value in given.items():
        if name in table.equal:
            conditions.add(f"CAST({table.equal[name]} AS VARCHAR) = ?", value)
        elif name.rpartition("_")[0] in table.ranges and name.endswith(("_from", "_to")):
            column = table.ranges[name.rpartition("_")[0]]
            conditions.add(_bound(column, name), _number(name, value))
        elif not (name in _OTHERS or name in _LAYOUT):
            raise InputError(f"unknown filter {name!r:.60}; expected one of {_known(table)}")
    _add_others(conditions, table, given, terms, words_of)
    page_number(given.get("page", "1"))
    return Filters(given, " AND ".join(conditions.parts) or "TRUE", tuple(conditions.values))


_OTHERS = ("q", "item", "correct", "format", "verdict", "term", "from", "to")


def _known(table: Table) -> str:
    ranges = [f"{name}_{end}" for name in table.ranges for end in ("from", "to")]
    return ", ".join([*table.equal, *ranges, *_OTHERS, *_LAYOUT])


def _add_others(
    conditions: _Conditions,
    table: Table,
    given: Mapping[str, str],
    terms: Collection[str],
    words_of: Callable[[str], Sequence[str]],
) -> None:
    for word in words_of(given["q"]) if "q" in given else ():
        _add_among(conditions, table, "SELECT n FROM words WHERE starts_with(word, ?)", word)
    if item := given.get("item"):
        _add_among(conditions, table, "SELECT n FROM items WHERE item = ?", item)
    if verdict := given.get("verdict"):
        if verdict not in _VERDICTS:
            raise InputError(f"verdict is {verdict!r:.60}; expected {', '.join(_VERDICTS)}")
        conditions.add(_VERDICTS[verdict].format(over=table.over, under=table.under))
    for name, column in (("correct", "correct"), ("format", "format_ok")):
        if value := given.get(name):
            if table is not TRAJECTORIES or value not in ("yes", "no"):
                raise InputError(f"{name} is {value!r:.60}; expected yes or no, for trajectories")
            conditions.add(column if value == "yes" else f"NOT {column}")
    term = given.get("term")
    if term is not None and term not in terms:
        raise InputError(f"term is {term!r:.60}; expected one of {', '.join(terms)}")
    for end in ("from", "to"):
        if end in given:
            if term is None:
                raise InputError(f"{end} has no term; add the name of a reward term, such as total")
            conditions.add(_bound(f'"{term}"', f"_{end}"), _number(end, given[end]))


def _add_among(conditions: _Conditions, table: Table, chosen: str, value: str) -> None:
    """The condition that a statement with one value selects one of the row's trajectories."""
    among = " OR ".join(f"{column} IN ({chosen})" for column in table.ids)
    conditions.add(f"({among})", *[value] * len(table.ids))


def _bound(column: str, name: str) -> str:
    """Both ends belong to the range."""
    return f"{column} {'>=' if name.endswith('_from') else '<='} ?"


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
