"""Convert a Word file (DOCX) to a tree of HTML elements for `corpus.page_text`.

Read are the body with its tables, text boxes, content controls, links, tracked insertions and
equations, and at the end footnotes and endnotes. Left out are tracked deletions, headers and
footers, comments and embedded files. The parts are read element by element, and a part that is too
large when it is unpacked is refused, because a file of a megabyte can unpack to gigabytes.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Any
from zipfile import ZipFile

from pipeline.core.errors import InputError

if TYPE_CHECKING:
    from lxml.etree import TreeBuilder

    from pipeline.knowledge.corpus.page_text import Element

_MAX_BYTES = 100_000_000  # of a part; a novel has 5 million
_TAGS = {"p": "p", "tbl": "table", "tr": "tr", "tc": "td", "txbxContent": "div"}
_MARKS = {"tab": " ", "noBreakHyphen": "-"}
_LEFT_OUT = frozenset({"del", "moveFrom", "Fallback"})  # a fallback repeats a text box
_HEADINGS = ("heading", "title")  # with these words the names of styles begin
_FIRST_ROW = 0x20  # bit of the look of a table whose first row is a header


def word_page(path: Path) -> tuple[str, Element]:
    """The title in the properties of a Word file, and its page.

    Raises InputError for a part that is too large, and what the readers of ZIP and XML raise for a
    damaged file.
    """
    from lxml.etree import TreeBuilder

    with ZipFile(path) as file:
        parts = {
            _value(one, "Type").rpartition("/")[2]: _value(one, "Target").lstrip("/")
            for event, name, one in _elements(file, "_rels/.rels")
            if (event, name) == ("start", "Relationship")
        }
        main = PurePosixPath(parts.get("officeDocument", "word/document.xml"))
        properties = _elements(file, parts.get("core-properties", "docProps/core.xml"))
        titles = [one.text for event, name, one in properties if (event, name) == ("end", "title")]
        headings = _headings(_elements(file, str(main.parent / "styles.xml")))
        file.getinfo(str(main))
        builder = TreeBuilder()
        builder.start("body", {})
        for part in (main, main.parent / "footnotes.xml", main.parent / "endnotes.xml"):
            _convert(_elements(file, str(part)), builder, headings)
        builder.end("body")
        return (titles[0] or "") if titles else "", builder.close()


def _elements(file: ZipFile, part: str) -> Iterator[tuple[str, str, Element]]:
    """Event, local name and element at each start and end in a part; none if it is absent.

    An element that has ended is emptied afterwards. Raises InputError when the part is too large.
    """
    from lxml.etree import iterparse

    size = file.getinfo(part).file_size if part in file.namelist() else 0
    if size > _MAX_BYTES:
        problem = f"{part} has {size:,} bytes when it is unpacked; at most {_MAX_BYTES:,} are read"
        raise InputError(problem)
    if size:
        with file.open(part) as stream:
            events: Any = iterparse(
                stream, ("start", "end"), resolve_entities=False, remove_comments=True,
                remove_pis=True,
            )  # fmt: skip
            for event, element in events:
                yield event, element.tag.rpartition("}")[2], element
                if event == "end":
                    element.clear(keep_tail=True)
                    if (before := element.getprevious()) is not None:
                        element.getparent().remove(before)


def _headings(elements: Iterator[tuple[str, str, Element]]) -> dict[str, bool]:
    """Whether a style is one of headings, by its id."""
    found: dict[str, bool] = {}
    style = ""
    for event, name, element in elements:
        if event == "start" and name == "style":
            style = _value(element, "styleId")
        elif event == "start" and name == "name" and style:
            found[style] = _value(element, "val").casefold().startswith(_HEADINGS)
    return found


def _convert(
    elements: Iterator[tuple[str, str, Element]], builder: TreeBuilder, headings: dict[str, bool]
) -> None:
    """Build the HTML elements of a part."""
    opened: list[Element] = []
    left_out = 0
    for event, name, element in elements:
        if name in _LEFT_OUT:
            left_out += 1 if event == "start" else -1
        elif left_out:
            continue
        elif name in _TAGS and event == "start":
            tag = "th" if name == "tc" and _in_header(opened) else _TAGS[name]
            opened.append(builder.start(tag, {}))
        elif name in _TAGS:
            builder.end(opened.pop().tag)
        elif event == "start" and opened:
            _describe(opened[-1], name, element, headings)
        elif name == "t":
            builder.data(element.text or "")
        elif name in _MARKS:
            builder.data(_MARKS[name])
        elif name in ("br", "cr"):
            builder.start("br", {})
            builder.end("br")


def _describe(made: Element, name: str, element: Element, headings: dict[str, bool]) -> None:
    """Take a property of a paragraph, a table, a row or a cell over to the element made of it."""
    value = _value(element, "val")
    if name == "pStyle" and headings.get(value, value.casefold().startswith(_HEADINGS)):
        made.tag = "h1"
    elif name == "tblLook":
        bits = int(value, 16) if value else 0
        if _value(element, "firstRow") in ("1", "true", "on") or bits & _FIRST_ROW:
            made.set("first", "header")
    elif name == "tblHeader" and value not in ("0", "false", "off"):
        made.set("header", "yes")
    elif name == "gridSpan":
        made.set("colspan", value)
    elif name == "vMerge" and value != "restart":
        made.set("merged", "yes")


def _in_header(opened: list[Element]) -> bool:
    """Whether a cell is in a row that repeats on each page, or in the first of a table with one."""
    if len(opened) < 2:
        return False
    table, row = opened[-2:]
    return row.get("header") is not None or (table.get("first") is not None and len(table) == 1)


def _value(element: Element, name: str) -> str:
    """An attribute in any name space; empty if it is absent."""
    values = (str(value) for key, value in element.items() if key.rpartition("}")[2] == name)
    return next(values, "")
