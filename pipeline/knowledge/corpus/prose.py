"""Read files of running text: Markdown, plain text, HTML, PDF and Word.

Input: a file. Output: `Document`s of plain text, one per file, for PDF one per page. The title is
the file's own (front matter, ``<title>``, properties), else the first heading, else the name of the
file. Markdown and Word files are converted to HTML, so all have the same text (`page_text`). PDF
needs the package of the extra ``documents``. A file that is converted or large is read in a process
with bounds of time and memory (`bounded`). The results of conversions can be kept by content.
"""

from __future__ import annotations

import codecs
import json
import re
from collections.abc import Callable, Iterator
from dataclasses import astuple
from functools import cache, partial
from importlib import import_module
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from pipeline.core.content_cache import ContentCache, digest
from pipeline.core.errors import InputError, Place, SteepError, missing
from pipeline.core.model_files import file_hash
from pipeline.core.text import file_name, one_line
from pipeline.knowledge.corpus.bounded import Exceeded, bounded
from pipeline.knowledge.corpus.page_text import given_title, page_text, parsed_page
from pipeline.knowledge.corpus.raw_records import Document
from pipeline.knowledge.corpus.word_file import word_page

_CONVERTERS = {".pdf": "pypdf", ".docx": "lxml"}  # whose version enters the key of kept documents
_IMPORTED = {
    ".pdf": ("pypdf",),
    ".docx": ("lxml.etree",),
    ".html": ("lxml.etree",),
    ".md": ("lxml.etree", "markdown_it", "yaml"),
}
_FORM = "documents 2"  # raised when the same file gives another text
_SMALL = 1 << 16  # bytes; no text of this size takes more than seconds
_FIELDS = 1 << 14  # characters of front matter
_NESTED = re.compile(r"[\[{]|[-?:] (?=[-?] )")
_LEVELS = 200  # of Markdown; deeper ones exceed Python's stack
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
    is_missing = path.suffix.lower() == ".pdf" and find_spec("pypdf") is None
    return "pypdf" if is_missing else None


def is_converted(path: Path) -> bool:
    """Whether the documents of the file are worth keeping."""
    return path.suffix.lower() in _CONVERTERS


def read_prose(path: Path, kept: ContentCache | None = None) -> Iterator[Document]:
    """Yield the documents of a file; the source of a page of a PDF is ``#page=N``.

    ``kept`` has the documents of PDF and Word files that were converted before, and gets new ones.
    Raises InputError when the file is unreadable, undecodable or damaged, takes too much time or
    memory, or has no text, and DependencyError when the package that reads it is not installed.
    """
    if missing_package(path) is not None:
        raise missing(f"{file_name(path)}: needs a package that is not installed", "documents")
    with Place(path):
        if path.exists() and not path.is_file():
            raise InputError("not a regular file")
        try:
            documents = _converted(path, kept) if kept and is_converted(path) else _read(path)
        except OSError as error:
            raise InputError(f"cannot be read: {error.strerror or error}") from None
        except Exceeded as error:
            raise InputError(str(error)) from None
        with_text = [document for document in documents if document.text.strip()]
        if not with_text:
            scan = "; a scan needs character recognition first" if path.suffix == ".pdf" else ""
            raise InputError(f"no text{scan}")
    for one in with_text:
        title = one.title.strip() or file_name(path.stem)
        yield Document(_encodable(title), _encodable(one.text), one.id, one.source, one.lines)


def _read(path: Path) -> list[Document]:
    read = partial(_parsed, path)
    if not is_converted(path) and path.stat().st_size <= _SMALL:
        return read()
    for name in _IMPORTED.get(path.suffix.lower(), ()):
        import_module(name)  # here, because each process would import it again
    return bounded(read)


def _parsed(path: Path) -> list[Document]:
    try:
        return list(_READERS[path.suffix.lower()](path))
    except (OSError, SteepError, MemoryError):
        raise
    except RecursionError:
        raise InputError("nested too deeply") from None
    except Exception as error:  # noqa: BLE001 - parsers raise anything for damaged files
        cause = one_line(f"{type(error).__name__}: {error}", 200)
        raise InputError(f"damaged: {cause}") from None


def _converted(path: Path, kept: ContentCache) -> list[Document]:
    suffix = path.suffix.lower()
    key = digest(_FORM, suffix, version(_CONVERTERS[suffix]), file_hash(path))
    if found := kept.get([key]):
        return [Document(*fields) for fields in json.loads(found[key])]
    documents = _read(path)
    kept.put([(key, json.dumps([astuple(one) for one in documents]).encode())])
    return documents


def _markdown(path: Path) -> Iterator[Document]:
    title, rest = _front_matter(_decoded(path))
    parser = _markdown_parser()
    tokens = parser.parse(rest)
    if any(token.level > _LEVELS - 4 for token in tokens):
        raise InputError("nested too deeply")  # the parser leaves out what is deeper
    yield from _page(parser.renderer.render(tokens, parser.options, {}), title)


def _front_matter(text: str) -> tuple[str, str]:
    """The title in the front matter of a Markdown text, and the text after it.

    Front matter that is no mapping is text, and so is what YAML would read for minutes. All values
    are read as they are written, because aliases and merged keys can unfold to gigabytes.
    """
    import yaml

    found = _FRONT_MATTER.match(text)
    if found is None or len(found[1]) > _FIELDS or len(_NESTED.findall(found[1])) > _LEVELS:
        return "", text
    try:
        fields = yaml.load(found[1], yaml.BaseLoader)  # makes texts, lists and mappings
    except (yaml.YAMLError, RecursionError):
        return "", text
    if not isinstance(fields, dict):
        return "", text
    title = fields.get("title")
    named = title if isinstance(title, str) and title not in ("null", "~") else ""
    return named, text[found.end() :]


@cache
def _markdown_parser() -> Any:
    from markdown_it import MarkdownIt

    return MarkdownIt("commonmark", {"maxNesting": _LEVELS}).enable(["table", "strikethrough"])


def _page(html: str, title: str = "") -> Iterator[Document]:
    try:
        page = parsed_page(html) if html.strip() else None
    except ValueError as error:
        raise InputError(f"nested too deeply ({error})") from None
    if page is not None:
        links = (one for one in page.iter("link") if one.get("rel") == "canonical")
        address = next((one.get("href", "") for one in links), "")
        yield Document(*page_text(page, title), None, address.strip(), lines=True)


def _pdf(path: Path) -> Iterator[Document]:
    from pypdf import PdfReader

    with path.open("rb") as stream:
        reader = PdfReader(stream)
        title = given_title(str((reader.metadata and reader.metadata.title) or ""))
        for number, page in enumerate(reader.pages, start=1):
            yield Document(title, page.extract_text(), None, f"#page={number}")


def _docx(path: Path) -> Iterator[Document]:
    title, page = word_page(path)
    yield Document(*page_text(page, title), lines=True)


_READERS: dict[str, Callable[[Path], Iterator[Document]]] = {
    ".md": _markdown,
    ".markdown": _markdown,
    ".txt": lambda path: iter([Document("", _decoded(path))]),
    ".html": lambda path: _page(_decoded(path)),
    ".htm": lambda path: _page(_decoded(path)),
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
        is_html = path.suffix.lower() in (".html", ".htm")
        declared = _CHARSET.search(data[:4096]) if is_html else None
        try:
            text = data.decode(declared[1].decode() if declared else "ascii")
        except (UnicodeDecodeError, LookupError):
            line = data.count(b"\n", 0, error.start) + 1
            problem = f"not UTF-8 text ({error.reason}); save it as UTF-8"
            raise InputError(problem, line) from None
    if "\0" in text:
        raise InputError("not a text file: it has NUL characters")
    return text.replace("\r\n", "\n")


def _encodable(text: str) -> str:
    """``text`` without unpaired surrogates, which broken fonts of PDF files give."""
    return text.encode("utf-8", "replace").decode("utf-8")
