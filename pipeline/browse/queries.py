"""Questions to the side table: lists, facets, distributions, and single rows.

Input: a connection to the tables of `pipeline.browse.index` and `Filters`. Output: plain values for
the pages. A connection answers one request at a time, so each call uses a new cursor.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from pipeline.browse import filters as filtering
from pipeline.browse.filters import PAGE_SIZE, Filters, Table
from pipeline.browse.index import WORDS
from pipeline.core.errors import InputError

if TYPE_CHECKING:
    from duckdb import DuckDBPyConnection

Row = dict[str, Any]
BARS = 20  # of a histogram
MOST_WORDS = 12  # of a search; further words are ignored


@dataclass(frozen=True)
class Listing:
    """One page of a list; ``total`` counts the rows of all pages."""

    rows: list[Row]
    total: int
    page: int

    @property
    def pages(self) -> int:
        """The number of pages, at least 1."""
        return max(1, -(-self.total // PAGE_SIZE))


@dataclass(frozen=True)
class Bar:
    """One bar of a distribution: the values from ``low`` to ``high``, and their number."""

    low: float
    high: float
    count: int


class Queries:
    """The tables of one run."""

    def __init__(self, connection: DuckDBPyConnection) -> None:
        self._connection = connection
        self._columns = {
            name: [column for column, *_ in self.rows_of(f"DESCRIBE {name}")]
            for name in ("trajectories", "pairs")
        }

    def rows_of(self, sql: str, values: Sequence[Any] = ()) -> list[tuple[Any, ...]]:
        """The rows of a statement."""
        result: list[tuple[Any, ...]] = (
            self._connection.cursor().execute(sql, list(values)).fetchall()
        )
        return result

    def records(self, sql: str, values: Sequence[Any] = ()) -> list[Row]:
        """The rows of a statement as dictionaries."""
        cursor = self._connection.cursor().execute(sql, list(values))
        names = [column[0] for column in cursor.description or ()]
        return [dict(zip(names, row, strict=True)) for row in cursor.fetchall()]

    def terms(self, table: Table) -> list[str]:
        """The columns of reward terms."""
        names = self._columns[table.name]
        if table is filtering.TRAJECTORIES:
            return [name for name in names if name.startswith("term_")]
        margins = [name for name in names if name.startswith("margin_")]
        found = [name.removeprefix("margin_") for name in margins]
        return [f"{side}_{term}" for side in ("margin", "chosen", "rejected") for term in found]

    def parse(self, table: Table, parameters: Mapping[str, str]) -> Filters:
        """The filters of an address. Raises InputError as `filters.parse` does."""
        return filtering.parse(table, parameters, self.terms(table), self._words)

    def _words(self, text: str) -> list[str]:
        """The words of a search, as the table of words has them."""
        words: list[str] = self.rows_of(f"SELECT {WORDS.format(text='?::VARCHAR')}", [text])[0][0]
        return list(dict.fromkeys(words))[:MOST_WORDS]

    def sort_columns(self, table: Table) -> list[str]:
        """The columns that a list can be sorted by."""
        return [*_SORTS[table.name], *self.terms(table)]

    def page(self, table: Table, filters: Filters) -> Listing:
        """The rows of one page. Raises InputError for a column that cannot be sorted by."""
        total = self.count(table, filters)
        page = int(filters.get("page", "1"))
        rows = self.records(
            f"SELECT * FROM {table.name} WHERE {filters.where} "
            f"ORDER BY {self._order(table, filters)} LIMIT {PAGE_SIZE} OFFSET ?",
            [*filters.values, (page - 1) * PAGE_SIZE],
        )
        return Listing(rows, total, page)

    def _order(self, table: Table, filters: Filters) -> str:
        natural = "n" if table is filtering.TRAJECTORIES else '"group", "row"'
        column = filters.get("sort")
        if not column:
            return natural
        if column not in self.sort_columns(table):
            known = ", ".join(self.sort_columns(table))
            raise InputError(f"sort is {column!r:.60}; expected one of {known}")
        direction = "DESC" if filters.get("order", "desc") != "asc" else "ASC"
        return f'"{column}" {direction} NULLS LAST, {natural}'

    def count(self, table: Table, filters: Filters) -> int:
        """The number of rows."""
        sql = f"SELECT count(*) FROM {table.name} WHERE {filters.where}"
        return int(self.rows_of(sql, filters.values)[0][0])

    def counts(self, table: str, column: str) -> dict[str, dict[str, int]]:
        """The number of rows for each value of a column, by group."""
        result: dict[str, dict[str, int]] = {}
        for group, value, count in self.rows_of(
            f'SELECT "group", "{column}", count(*) FROM {table} WHERE "{column}" IS NOT NULL '
            "GROUP BY ALL ORDER BY ALL"
        ):
            result.setdefault(group, {})[value] = count
        return result

    def facets(self, table: Table, filters: Filters) -> dict[str, dict[str, int]]:
        """The number of rows for each value of the columns with few values, by column."""
        names = _FACETS[table.name]
        columns = ", ".join(f'"{name}"' for name in names)
        sets = ", ".join(f'("{name}")' for name in names)
        rows = self.rows_of(
            f"SELECT {columns}, grouping({columns}), count(*) FROM {table.name} "
            f"WHERE {filters.where} GROUP BY GROUPING SETS ({sets})",
            filters.values,
        )
        result: dict[str, dict[str, int]] = {name: {} for name in names}
        for *values, mask, count in rows:
            place = next(i for i in range(len(names)) if not mask >> (len(names) - 1 - i) & 1)
            if values[place] is not None:
                result[names[place]][str(values[place])] = count
        return {name: dict(sorted(counts.items())) for name, counts in result.items() if counts}

    def neighbours(
        self, table: Table, filters: Filters, group: str, row: int
    ) -> tuple[Row | None, Row | None]:
        """The rows before and after a row in a list."""
        place = "{'group': \"group\", 'row': \"row\"}"
        found = self.rows_of(
            f"SELECT before, after FROM (SELECT *, lag({place}) OVER w AS before, "
            f"lead({place}) OVER w AS after FROM {table.name} WHERE {filters.where} "
            f"WINDOW w AS (ORDER BY {self._order(table, filters)})) "
            'WHERE "group" = ? AND "row" = ?',
            [*filters.values, group, row],
        )
        before, after = found[0] if found else (None, None)
        return before, after

    def histogram(self, table: Table, filters: Filters, column: str) -> list[Bar]:
        """The distribution of a number; one bar for each value if it has few values."""
        if column not in self.sort_columns(table):
            raise InputError(f"chart is {column!r:.60}; expected a number of the list")
        of = f'FROM {table.name} WHERE {filters.where} AND "{column}" IS NOT NULL'
        values = self.rows_of(
            f'SELECT "{column}"::DOUBLE AS v, count(*) {of} GROUP BY v ORDER BY v LIMIT {BARS + 1}',
            filters.values,
        )
        if len(values) <= BARS:
            return [Bar(value, value, count) for value, count in values]
        low, high = self.rows_of(f'SELECT min("{column}"), max("{column}") {of}', filters.values)[0]
        width = (high - low) / BARS
        rows = dict(
            self.rows_of(
                f'SELECT least(floor(("{column}" - ?) / ?), {BARS - 1})::BIGINT AS b, count(*) '
                f"{of} GROUP BY b",
                [low, width, *filters.values],
            )
        )
        return [Bar(low + i * width, low + (i + 1) * width, rows.get(i, 0)) for i in range(BARS)]

    def one(self, table: Table, group: str, row: int) -> Row | None:
        """A row by its place in its file, or None."""
        sql = f'SELECT * FROM {table.name} WHERE "group" = ? AND "row" = ?'
        return next(iter(self.records(sql, [group, row])), None)

    def by_id(self, group: str, trajectory_id: str) -> Row | None:
        """The trajectory of a group by its id, or None."""
        sql = 'SELECT * FROM trajectories WHERE "group" = ? AND trajectory_id = ?'
        return next(iter(self.records(sql, [group, trajectory_id])), None)

    def of_question(self, question_id: str, group: str | None = None) -> list[Row]:
        """All trajectories of a question: of a group, or in every round and of every policy."""
        return self.records(
            'SELECT * FROM trajectories WHERE question_id = ? AND "group" = coalesce(?, "group") '
            "ORDER BY n",
            [question_id, group],
        )

    def pairs_of(self, trajectory_ids: Sequence[str]) -> list[Row]:
        """All pairs in which one of the trajectories is chosen or rejected."""
        return self.records(
            "SELECT * FROM pairs WHERE list_contains(?, chosen_id) "
            "OR list_contains(?, rejected_id)",
            [list(trajectory_ids)] * 2,
        )

    def verdicts_of(self, group: str, trajectory_id: str) -> dict[int, Row]:
        """The verdicts on the steps of a trajectory, by step from 0."""
        rows = self.records(
            'SELECT * FROM verdicts WHERE "group" = ? AND trajectory_id = ? ORDER BY step',
            [group, trajectory_id],
        )
        return {row["step"]: row for row in rows}

    def retrieved_by(self, item: str, limit: int = 20) -> tuple[int, list[Row]]:
        """The number of trajectories that retrieved an item, and the first of them."""
        among = "FROM trajectories WHERE n IN (SELECT n FROM items WHERE item = ?)"
        total = self.rows_of(f"SELECT count(*) {among}", [item])[0][0]
        return int(total), self.records(f"SELECT * {among} ORDER BY n LIMIT {limit}", [item])


_SORTS = {
    "trajectories": ["steps", "searches", "tokens", "characters", "over", "under"],
    "pairs": ["tokens_chosen", "tokens_rejected", "steps_chosen", "steps_rejected"],
}
_FACETS = {
    "trajectories": ["group", "dataset", "hop", "hops", "type", "failure", "bin", "stop"],
    "pairs": ["group", "dataset", "hop", "hops", "kind", "failure"],
}
