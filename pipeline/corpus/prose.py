"""Read files of running text: Markdown, plain text, HTML, PDF and Word.

Input: a file. Output: `Document`s of plain text, one per file, for PDF one per page. The title is
the file's own (front matter, ``<title>``, properties), else the first heading, else the name of the
file. Markdown is rendered to HTML, so both have the same text. PDF and Word need the packages of
the extra ``documents``. Their conversion takes long, so that its results can be kept by content.
"""

from __future__ import annotations

import codecs
import json
import re
from collections.abc import Callable, Iterator
from dataclasses import astuple
from functools import cache
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from pipeline.core.content_cache import ContentCache, digest
from pipeline.core.errors import DependencyError, InputError, SteepError
from pipeline.core.model_files import file_hash
from pipeline.core.text import one_line
from pipeline.corpus.raw_records import Document

_PACKAGES = {".pdf": "pypdf", ".docx": "docx"}  # as they are imported, and as they are installed
_DISTRIBUTIONS = {".pdf": "pypdf", ".docx": "python-docx"}
# Elements inside a line of text; all others begin a new line.
_INLINE = re.compile(
    "a|abbr|b|bdi|bdo|big|cite|code|data|del|dfn|em|font|i|ins|kbd|label|mark|q|r[pt]|ruby|s|samp"
    "|small|span|strike|strong|sub|sup|time|tt|u|var|wbr"
)
_UNSEEN = "//script|//style|//template|//noscript|//svg|//nav|//comment()|//head"
_FRONT_MATTER = re.compile(r"\A---[ \t]*\n(.*?)\n(?:---|\.\.\.)[ \t]*(?:\n|\Z)", re.DOTALL)
_CHARSET = re.compile(rb"""charset\s*=\s*["']?([\w-]+)""", re.IGNORECASE)
_BOMS = {
    codecs.BOM_UTF8: "utf-8-sig",
    codecs.BOM_UTF16_LE: "utf-16",
    codecs.BOM_UTF16_BE: "utf-16",
}


def is_prose(path: Path) -> bool:
    """Whether the name says that the file is running text."""
    return path.suffix.lower() in _READERS


def missing_package(path: Path) -> str | None:
    """The package that the file needs and that is not installed."""
    package = _PACKAGES.get(path.suffix.lower())
    return package if package is not None and find_spec(package) is None else None


def is_converted(path: Path) -> bool:
    """Whether the documents of the file are worth keeping."""
    return path.suffix.lower() in _PACKAGES


def read_prose(path: Path, kept: ContentCache | None = None) -> Iterator[Document]:
    """Yield the documents of a file; the source of a page of a PDF is ``#page=N``.

    ``kept`` has the documents of PDF and Word files that were converted before, and gets new ones.
    Raises InputError when the file is unreadable, undecodable or damaged, or has no text, and
    DependencyError when the package that reads it is not installed.
    """
    if missing_package(path) is not None:
        raise DependencyError(
            f"{path}: needs a package that is not installed; pip install 'steep[documents]'"
        )
    try:
        documents = _converted(path, kept) if kept and is_converted(path) else _read(path)
    except OSError as error:
        raise InputError.at(path, None, f"cannot be read: {error.strerror or error}") from None
    except SteepError:
        raise
    except Exception as error:  # noqa: BLE001 - parsers raise anything for damaged files
        cause = one_line(f"{type(error).__name__}: {error}", 200)
        raise InputError.at(path, None, f"damaged: {cause}") from None
    with_text = [document for document in documents if document.text.strip()]
    if not with_text:
        scan = "; a scan needs character recognition first" if path.suffix == ".pdf" else ""
        raise InputError.at(path, None, f"no text{scan}")
    for one in with_text:
        title = one.title.strip() or path.stem
        yield Document(_encodable(title), _encodable(one.text), one.id, one.source)


def _read(path: Path) -> list[Document]:
    return list(_READERS[path.suffix.lower()](path))


def _converted(path: Path, kept: ContentCache) -> list[Document]:
    suffix = path.suffix.lower()
    key = digest("documents", suffix, version(_DISTRIBUTIONS[suffix]), file_hash(path))
    if found := kept.get([key]):
        return [Document(*fields) for fields in json.loads(found[key])]
    documents = _read(path)
    kept.put([(key, json.dumps([astuple(one) for one in documents]).encode())])
    return documents


def _text(path: Path) -> Iterator[Document]:
    yield Document("", _decoded(path))


def _markdown(path: Path) -> Iterator[Document]:
    import yaml

    text, title = _decoded(path), ""
    if found := _FRONT_MATTER.match(text):
        try:
            fields = yaml.safe_load(found[1])
        except yaml.YAMLError:
            fields = None
        if isinstance(fields, dict):
            text, title = text[found.end() :], str(fields.get("title") or "")
    if text.strip():
        yield _of_html(_markdown_parser().render(text), title)


@cache
def _markdown_parser() -> Any:
    from markdown_it import MarkdownIt

    return MarkdownIt("commonmark").enable(["table", "strikethrough"])


def _html(path: Path) -> Iterator[Document]:
    text = _decoded(path)
    if text.strip():
        yield _of_html(text)


def _of_html(text: str, title: str = "") -> Document:
    """The text of a page; a heading that is the title is left out of the text."""
    import lxml.html

    parser = lxml.html.HTMLParser(encoding="utf-8", huge_tree=True)
    page = lxml.html.document_fromstring(text.encode("utf-8", "replace"), parser=parser)
    title = _line(title or page.findtext(".//title") or "")
    address = page.xpath("string(//link[@rel='canonical']/@href)")
    for unseen in page.xpath(_UNSEEN):
        if unseen.getparent() is not None:
            unseen.drop_tree()
    headings = page.xpath("//h1|//h2|//h3|//h4|//h5|//h6")
    heading = _line(headings[0].text_content()) if headings else ""
    title = title or heading
    if headings and heading == title:
        headings[0].drop_tree()
    for element in page.iter():
        if not _INLINE.fullmatch(str(element.tag)):
            element.text = "\n" + (element.text or "")
            element.tail = "\n" + (element.tail or "")
    text = re.sub(r"\s*\n\s*", "\n", page.text_content())
    return Document(title, text.strip(), None, str(address).strip())


def _pdf(path: Path) -> Iterator[Document]:
    from pypdf import PdfReader

    with path.open("rb") as stream:
        reader = PdfReader(stream)
        title = str((reader.metadata and reader.metadata.title) or "")
        for number, page in enumerate(reader.pages, start=1):
            yield Document(title, page.extract_text(), None, f"#page={number}")


def _docx(path: Path) -> Iterator[Document]:
    from docx import Document as Word
    from docx.table import Table

    document: Any = Word(str(path))
    title, lines = document.core_properties.title or "", []
    for block in document.iter_inner_content():
        if isinstance(block, Table):
            lines += [" ".join(cell.text for cell in row.cells) for row in block.rows]
        elif not title and block.style.name.startswith(("Title", "Heading")):
            title = block.text
        elif block.text != title:
            lines.append(block.text)
    yield Document(title, "\n".join(lines))


_READERS: dict[str, Callable[[Path], Iterator[Document]]] = {
    ".md": _markdown,
    ".markdown": _markdown,
    ".txt": _text,
    ".html": _html,
    ".htm": _html,
    ".pdf": _pdf,
    ".docx": _docx,
}


def _decoded(path: Path) -> str:
    """The text of a file in UTF-8, in UTF-16 with its mark, or in the encoding that HTML names.

    Raises InputError when it is in none of them.
    """
    data = path.read_bytes()
    encoding = next((name for mark, name in _BOMS.items() if data.startswith(mark)), "utf-8")
    try:
        text = data.decode(encoding)
    except UnicodeDecodeError as error:
        declared = _CHARSET.search(data[:4096]) if _READERS[path.suffix.lower()] is _html else None
        try:
            text = data.decode(declared[1].decode() if declared else "ascii")
        except (UnicodeDecodeError, LookupError):
            line = data.count(b"\n", 0, error.start) + 1
            problem = f"not UTF-8 text ({error.reason}); save it as UTF-8"
            raise InputError.at(path, line, problem) from None
    if "\0" in text:
        raise InputError.at(path, None, "not a text file: it has NUL characters")
    return text.replace("\r\n", "\n")


def _line(text: str) -> str:
    return " ".join(text.split())


def _encodable(text: str) -> str:
    """``text`` without unpaired surrogates, which broken fonts of PDF files give."""
    return text.encode("utf-8", "replace").decode("utf-8")
