"""The text of a page: lines of blocks, rows of tables with their headers, and code as it stands.

Input: a tree of HTML elements, which Markdown and Word files are converted to as well. Output: a
title and plain text. Every block is a line. A row of a table is a line ``header: value; header:
value``; a cell that spans rows is repeated in each. Preformatted text keeps its lines and its
indentation; other white space is collapsed. What a reader of the page does not see is left out:
scripts, styles, navigation. The tree is never walked by recursion, so its depth does not matter.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import takewhile
from typing import TYPE_CHECKING, Any, TypeAlias

if TYPE_CHECKING:
    from lxml.etree import _Element

    Element: TypeAlias = _Element

# Elements inside a line of text; all others begin a new line.
_INLINE = re.compile(
    "a|abbr|b|bdi|bdo|big|cite|code|data|del|dfn|em|font|i|ins|kbd|label|mark|q|r[pt]|ruby|s|samp"
    "|small|span|strike|strong|sub|sup|time|tt|u|var|wbr"
)
_UNSEEN = frozenset({"script", "style", "template", "noscript", "svg", "nav", "head"})
_HEADINGS = ("h1", "h2", "h3", "h4", "h5", "h6")
_AS_IT_STANDS = frozenset({"pre", "listing", "xmp", "textarea"})
_KEPT = "\0"  # a line break of preformatted text, until lines are cleaned
_ROWS = "tr|thead/tr|tbody/tr|tfoot/tr"
_ROW = "row"  # the element of a line of a table
_MAX_TITLE = 300  # characters; a title is repeated in every passage
_MAX_HEADER = 100  # a longer one is not repeated in every row
_MAX_COLUMNS, _MAX_ROWS = 100, 1000  # that a cell may span
_MAX_REPEATED = 100_000  # places that the cells of a table may span beside their own
# Titles that programs write into files without one.
_NO_TITLE = frozenset({"word document", "untitled", "untitled document"})


def page_text(page: Element, title: str = "") -> tuple[str, str]:
    """Title and text of a page; changes the page.

    ``title`` comes before the page's own ``<title>`` and the first heading. A heading that is the
    title is left out of the text.
    """
    titles = (one.text or "" for one in page.iter("title") if not _is_unseen(one, "head"))
    title = given_title(title) or given_title(next(titles, ""))
    headings = (one for one in page.iter(*_HEADINGS) if not _is_unseen(one))
    heading = next(headings, None)
    named = "" if heading is None else given_title(_flow(heading))
    for table in reversed(list(page.iter("table"))):  # inner tables first
        _write_rows(table)
    without = heading if named and named == (title or named) else None
    return title or named, _cleaned(_flow(page, without))


def given_title(title: str) -> str:
    """A title on one line; empty if the title is too long, or says only that there is none."""
    line = _line(title)
    return "" if line.casefold() in _NO_TITLE or len(line) > _MAX_TITLE else line


def _is_unseen(element: Element, but: str = "") -> bool:
    return any(above.tag in _UNSEEN and above.tag != but for above in element.iterancestors())


def _line(text: str) -> str:
    return " ".join(text.replace(_KEPT, " ").split())


def _cleaned(text: str) -> str:
    """The lines of a `_flow` without white space around them; empty ones stay in code alone."""
    lines = []
    for line in text.split("\n"):
        if _KEPT in line:
            code = "\n".join(each.rstrip() for each in line.split(_KEPT))
            lines.append(code.strip("\n"))
        else:
            lines.append(_line(line))
    return "\n".join(filter(None, lines))


def _flow(root: Element, without: Element | None = None) -> str:
    """The text below an element with a line break around each block, less one element."""
    from lxml.etree import iterwalk

    found: list[str] = []
    kept = 0  # elements around that keep their white space
    walk = iterwalk(root, events=("start", "end", "comment", "pi"))
    for event, element in walk:
        tag = element.tag if isinstance(element.tag, str) else "span"
        if not _INLINE.fullmatch(tag):
            found.append("\n")
        text = None
        if event == "start":
            kept += tag in _AS_IT_STANDS
            if tag in _UNSEEN or element is without:
                walk.skip_subtree()
            else:
                text = element.text
        else:
            kept -= tag in _AS_IT_STANDS
            text = element.tail if element is not root else None
        if text:
            found.append(text.replace("\n", _KEPT if kept else " "))
    return "".join(found)


@dataclass(frozen=True, slots=True)
class _Cell:
    """A cell of a table, which may stand in several columns and rows."""

    text: str
    is_header: bool


def _write_rows(table: Element) -> None:
    """Put the lines of a table of data in the place of its rows; a table for layout stays.

    A table with code or headings is for layout, and so is one without headers around others, and
    one whose cells span too many places.
    """
    from lxml.etree import SubElement

    rows = table.xpath(_ROWS)
    headers = _header_rows(rows)
    blocks = ("pre", *_HEADINGS) if headers else ("pre", *_HEADINGS, "table", _ROW)
    if next(table.iterdescendants(*blocks), None) is not None:
        return
    captions = [_line(_flow(one)) for one in table.iterchildren("caption")]
    texts = {cell: _line(_flow(cell)) for row in rows for cell in row.iterchildren("td", "th")}
    if sum(map(_letters, (*captions, *texts.values()))) != _letters(_flow(table)):
        return  # text beside the cells
    spans = (_span(c, "colspan", _MAX_COLUMNS) * _span(c, "rowspan", _MAX_ROWS) for c in texts)
    if sum(spans) - len(texts) > _MAX_REPEATED:
        return  # a page of 7 kB could have ten million places
    lines = [*captions, *_row_lines(list(_grid(rows, texts)), headers)]
    for child in list(table):
        table.remove(child)
    for line in lines:
        SubElement(table, _ROW).text = line


def _letters(text: str) -> int:
    return len("".join(text.replace(_KEPT, "").split()))


def _grid(rows: list[Element], texts: dict[Element, str]) -> Iterator[dict[int, _Cell]]:
    """For each row its cells by column, with those that reach into it from above."""
    row: dict[int, _Cell] = {}
    below: dict[int, tuple[int, _Cell]] = {}  # rows that a cell still spans
    for element in rows:
        above, row = row, {column: cell for column, (_, cell) in below.items()}
        below = {column: (left - 1, cell) for column, (left, cell) in below.items() if left > 1}
        column = 0
        for each in element.iterchildren("td", "th"):
            while column in row:
                column += 1
            cell = _Cell(texts[each], each.tag == "th")
            if each.get("merged"):  # a cell of Word that continues the one above
                cell = above.get(column, cell)
            spanned = _span(each, "rowspan", _MAX_ROWS) - 1
            repeated = cell if len(cell.text) <= _MAX_HEADER else _Cell("", cell.is_header)
            for _ in range(_span(each, "colspan", _MAX_COLUMNS)):
                row[column] = cell
                if spanned:
                    below[column] = spanned, repeated
                column += 1
        yield row


def _span(cell: Element, name: str, most: int) -> int:
    given = cell.get(name, "")
    return min(max(int(given), 1), most) if given.isdecimal() and len(given) < 9 else 1


def _header_rows(rows: list[Element]) -> int:
    """The number of first rows that hold headers alone."""
    tags = ({cell.tag for cell in row.iterchildren("td", "th")} for row in rows)
    return len(list(takewhile(lambda of_row: of_row == {"th"}, tags)))


def _row_lines(grid: list[dict[int, _Cell]], headers: int) -> Iterator[str]:
    """A line for each row that is no header, after the headers that no row repeats."""
    names: dict[int, list[str]] = {}
    alone: list[str] = []  # such as a title over all columns
    for row in grid[:headers]:
        over_all = len(row) > 1 and len(set(map(id, row.values()))) == 1
        for column, cell in row.items():
            _add(alone if over_all else names.setdefault(column, []), cell.text)
    heads = {column: " ".join(parts) for column, parts in names.items()}
    body = grid[headers:]
    used = {column for row in body for column, cell in row.items() if cell.text}
    for column, head in heads.items():
        if column not in used or len(head) > _MAX_HEADER:
            _add(alone, head)
            heads[column] = ""
    if alone:
        yield "; ".join(alone)
    for row in body:
        yield _row_line(row, heads)


def _row_line(row: dict[int, _Cell], heads: dict[int, str]) -> str:
    columns: dict[int, list[int]] = {}
    for column in sorted(row):
        columns.setdefault(id(row[column]), []).append(column)
    label = ""
    parts: list[str] = []
    for spanned in columns.values():
        cell, above = row[spanned[0]], list(dict.fromkeys(heads.get(one, "") for one in spanned))
        head = ", ".join(filter(None, above))
        if cell.text and cell.is_header and not head and not parts and not label:
            label = cell.text
        elif cell.text:
            parts.append(f"{head}: {cell.text}" if head else cell.text)
    return ": ".join(filter(None, (label, "; ".join(parts))))


def _add(texts: list[str], text: str) -> None:
    if text and text not in texts:
        texts.append(text)


def parsed_page(text: str) -> Any:
    """The tree of an HTML text, or None when it is empty.

    Raises ValueError when the parser would drop the elements below a certain depth.
    """
    from lxml import etree

    parser = etree.HTMLParser(encoding="utf-8", huge_tree=True)
    try:
        page = etree.fromstring(text.encode("utf-8", "replace"), parser)
    except etree.XMLSyntaxError:  # nothing but comments
        page = None
    if fatal := parser.error_log.filter_from_fatals():
        raise ValueError(fatal[0].message.partition(",")[0])
    return page
