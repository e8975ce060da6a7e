"""Questions to the side table: lists, facets, and single rows.

Input: a connection to the tables of `pipeline.look.browse.index` and `Filters`. Output: plain
values for the pages. A connection answers one request at a time, so each call uses a new cursor.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pipeline.core.errors import InputError, StoreError
from pipeline.look.browse import filters as filtering
from pipeline.look.browse.filters import PAGE_SIZE, Filters, Table
from pipeline.look.browse.index import PARQUET, WORDS, duckdb, pattern

if TYPE_CHECKING:
    from duckdb import DuckDBPyConnection

Row = dict[str, Any]
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
        return [*table.sorts, *self.terms(table)]

    def page(self, table: Table, filters: Filters) -> Listing:
        """The rows of one page. Raises InputError for a column that cannot be sorted by."""
        sql = f"SELECT count(*) FROM {table.name} WHERE {filters.where}"
        [(total,)] = self.rows_of(sql, filters.values)
        page = min(int(filters.get("page", "1")), Listing([], total, 1).pages)
        rows = self.records(
            f"SELECT * FROM {table.name} WHERE {filters.where} "
            f"ORDER BY {self._order(table, filters)} LIMIT {PAGE_SIZE} OFFSET ?",
            [*filters.values, (page - 1) * PAGE_SIZE],
        )
        return Listing(rows, total, page)

    def _order(self, table: Table, filters: Filters) -> str:
        column = filters.get("sort")
        if not column:
            return table.order
        if column not in self.sort_columns(table):
            known = ", ".join(self.sort_columns(table))
            raise InputError(f"sort is {column!r:.60}; expected one of {known}")
        direction = "DESC" if filters.get("order", "desc") != "asc" else "ASC"
        return f'"{column}" {direction} NULLS LAST, {table.order}'

    def facets(self, table: Table, filters: Filters) -> dict[str, dict[str, int]]:
        """The number of rows for each value of the columns with few values, by column."""
        result = {}
        for name in table.facets:
            counts = self.rows_of(
                f'SELECT "{name}"::VARCHAR, count(*) FROM {table.name} WHERE {filters.where} '
                f'AND "{name}" IS NOT NULL GROUP BY 1 ORDER BY 1',
                filters.values,
            )
            if counts:
                result[name] = dict(counts)
        return result

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

    def where(self, table: str | Path, **values: object) -> list[Row]:
        """The rows of a table, or of a Parquet file, with these values, in order.

        Raises StoreError when the file cannot be read.
        """
        source = table if isinstance(table, str) else PARQUET.format("?")
        named = [] if isinstance(table, str) else [pattern(table)]
        condition = " AND ".join(f'"{column}" = ?' for column in values)
        try:
            return self.records(
                f"SELECT * FROM {source} WHERE {condition} ORDER BY 1", [*named, *values.values()]
            )
        except duckdb().Error as error:
            raise StoreError(f"{table}: {str(error).splitlines()[0]}") from None

    def first(self, table: str | Path, **values: object) -> Row | None:
        """The first row with these values, or None."""
        return next(iter(self.where(table, **values)), None)

    def test_questions(self, most: int = 3) -> list[str]:
        """Questions that the run was evaluated on, from different data sets if it has several."""
        rows = self.rows_of(
            "SELECT question FROM (SELECT question, n, row_number() OVER (PARTITION BY dataset "
            "ORDER BY n) AS place FROM trajectories WHERE starts_with(\"group\", 'policy-')) "
            "GROUP BY question ORDER BY min(place), min(n) LIMIT ?",
            [most],
        )
        return [question for (question,) in rows]

    def pairs_of(self, trajectory_id: str) -> list[Row]:
        """All pairs in which the trajectory is chosen or rejected."""
        sql = "SELECT * FROM pairs WHERE chosen_id = ? OR rejected_id = ?"
        return self.records(sql, [trajectory_id] * 2)
